"""Other lock libraries, through their adapters (torture/adapters), on the same servers and under some of the same faults.
They promise less than dibs, or nothing, under most of them: what they violate is reported and fails nothing."""

import os
import shlex
import shutil
import subprocess
import sys

import cell as cells

ADAPTERS = os.path.join(cells.HERE, 'adapters')
FAULTS = ('none', 'client-stop', 'client-kill', 'server-stop', 'server-kill', 'partition', 'late', 'sockets', 'delay')
ON_REDIS = ('failover', 'flushall', 'clock-forward')


def plan(options):
    return {}
