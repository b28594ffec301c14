#!/usr/bin/env python3
"""Turns the dashboard's files into C: embed.py OUTPUT FILE..."""
import hashlib
import os
import sys

TYPES = {'.html': 'text/html; charset=utf-8', '.js': 'text/javascript; charset=utf-8', '.css': 'text/css; charset=utf-8',
         '.svg': 'image/svg+xml'}
LIMIT = 100 * 1024


def main(output, paths):
    arrays, rows, total = [], [], 0
    for number, path in enumerate(sorted(paths)):
        with open(path, 'rb') as file:
            data = file.read()
        total += len(data)
        name = os.path.basename(path)
        url = '/' if name == 'index.html' else '/' + name
        # Numbers, not a string: compilers need not take a string as long as a page.
        lines = ',\n'.join(','.join(map(str, data[i:i + 32])) for i in range(0, len(data), 32))
        arrays.append('static const unsigned char file_%d[] = {\n%s};\n' % (number, lines))
        rows.append('    {"%s", "%s", "\\"%s\\"", file_%d, sizeof file_%d},\n'
                    % (url, TYPES[os.path.splitext(name)[1]], hashlib.sha256(data).hexdigest()[:16], number, number))
    if total > LIMIT:
        sys.exit('the dashboard has %d bytes; at most %d are wanted' % (total, LIMIT))
    with open(output, 'w', encoding='utf-8') as file:
        file.write('#include "serve/assets.h"\n\n%s\nconst serve_asset serve_assets[] = {\n%s    {0},\n};\n'
                   % ('\n'.join(arrays), ''.join(rows)))


if __name__ == '__main__':
    main(sys.argv[1], sys.argv[2:])
