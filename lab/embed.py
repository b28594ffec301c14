#!/usr/bin/env python3
"""Turns the page of a report into C: embed.py OUTPUT PAGE.html"""
import sys


def main(output, page):
    with open(page, encoding="utf-8") as file:
        data = file.read().encode("ascii")  # what is not ASCII is written as an entity or an escape
    # Numbers, not a string: compilers need not take a string as long as a page.
    rows = [", ".join(map(str, data[i:i + 24])) for i in range(0, len(data), 24)]
    with open(output, "w", encoding="utf-8") as file:
        file.write('#include "lab/report_html.h"\n\nconst char lab_report_html[] = {\n')
        file.write(",\n".join(rows) + ",\n0};\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
