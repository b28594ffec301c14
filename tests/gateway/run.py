#!/usr/bin/env python3
"""Tests of `dibs gateway`, with a real application behind it and real engines: run.py --dibs PATH [--part P] [--list] [PATTERN...]"""

import os
import sys

sys.dont_write_bytecode = True  # the tree stays as it is

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, '..', 'cli'))
import suite  # noqa: E402
import gateway  # noqa: E402
import test_gateway_bad  # noqa: E402
import test_gateway_faults  # noqa: E402
import test_gateway_limits  # noqa: E402
import test_gateway_operation  # noqa: E402
import test_gateway_replay  # noqa: E402
import test_gateway_routes  # noqa: E402

PARTS = {
    'routes': (test_gateway_routes, test_gateway_operation),
    'faults': (test_gateway_faults,),
    'wire': (test_gateway_replay, test_gateway_bad, test_gateway_limits),
}

if __name__ == '__main__':
    sys.exit(suite.main('tests of dibs gateway', PARTS, gateway.Context))
