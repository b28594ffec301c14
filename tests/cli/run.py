#!/usr/bin/env python3
"""Tests of the command, with real processes, signals and engines: run.py --dibs PATH [--part P] [--list] [PATTERN...]

A part is run, once, doctor, lab or torture; without one it is all of them. Speaks TAP. Servers are private, on free ports; everything lives in scratch folders that are removed."""

import sys

sys.dont_write_bytecode = True  # the tree stays as it is

import suite
import test_basics
import test_doctor
import test_doctor_servers
import test_exclusion
import test_guardian
import test_keys
import test_lab
import test_inspect
import test_moving
import test_once
import test_programs
import test_redlock
import test_terminal
import test_torture
import test_usage
import test_values

PARTS = {
    'run': (test_usage, test_programs, test_basics, test_exclusion, test_guardian, test_inspect, test_moving, test_terminal, test_redlock),
    'once': (test_once, test_keys, test_values),
    'doctor': (test_doctor, test_doctor_servers),
    'lab': (test_lab,),
    'torture': (test_torture,),
}


if __name__ == '__main__':
    sys.exit(suite.main('tests of the dibs command', PARTS))
