#!/usr/bin/env python3
"""Tests of `dibs serve`, with real servers and engines: run.py --dibs PATH [--part P] [--list] [PATTERN...]

Speaks TAP. Every JSON answer that a test gets is checked against the server's own /openapi.json."""

import os
import sys

sys.dont_write_bytecode = True  # the tree stays as it is

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, '..', 'cli'))
import suite  # noqa: E402
import server  # noqa: E402
import test_http_bad  # noqa: E402
import test_http_documents  # noqa: E402
import test_http_faults  # noqa: E402
import test_http_locks  # noqa: E402
import test_http_many  # noqa: E402
import test_http_once  # noqa: E402
import test_http_security  # noqa: E402
import test_http_service  # noqa: E402
import test_http_values  # noqa: E402

PARTS = {
    'api': (test_http_locks, test_http_once, test_http_values, test_http_documents),
    'bad': (test_http_bad, test_http_security, test_http_service),
    'faults': (test_http_faults, test_http_many),
}


if __name__ == '__main__':
    sys.exit(suite.main('tests of dibs serve', PARTS, server.Context))
