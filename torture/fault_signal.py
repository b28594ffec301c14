"""What `dibs torture` runs for a fault of the matrix: fault_signal.py SOCKET NAME begin|end"""

import socket
import sys


def main(path, name, what):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(110)
        s.connect(path)
        s.sendall(('%s %s\n' % (name, what)).encode())
        answer = s.makefile().readline().strip()
    if answer != 'ok':
        print(answer or 'the harness is gone', file=sys.stderr)
    return 0 if answer == 'ok' else 1


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
