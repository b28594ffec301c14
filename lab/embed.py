#!/usr/bin/env python3
"""Turns files into C: embed.py OUTPUT.c HEADER PREFIX FILE...

HEADER declares what OUTPUT.c defines: for each FILE, such as page.html, the string PREFIX_page_html."""
import os
import sys


def main(output, header, prefix, *paths):
    with open(output, "w", encoding="utf-8") as out:
        out.write('#include "%s"\n' % header)
        for path in paths:
            with open(path, encoding="utf-8") as file:
                data = file.read().encode("ascii")  # what is not ASCII is written as an entity or an escape
            name = os.path.basename(path).replace(".", "_").replace("-", "_")
            # Numbers, not a string: compilers need not take a string as long as a page.
            rows = [", ".join(map(str, data[i:i + 24])) for i in range(0, len(data), 24)]
            out.write("\nconst char %s_%s[] = {\n%s,\n0};\n" % (prefix, name, ",\n".join(rows)))


if __name__ == "__main__":
    main(*sys.argv[1:])
