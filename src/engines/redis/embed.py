#!/usr/bin/env python3
"""Turns the Lua commands into one C file: embed.py OUTPUT ARRAY HEADER COMMAND.lua...

ARRAY is what HEADER declares.

A line `--include FILE` is replaced by that file, found beside the including one. `--define NAME VALUE ...`
gives names to numbers: a local would cost something in every run, and more in every function that uses it.
Comments and indentation are left out, so that the server compiles and keeps only what runs.
"""
import os
import re
import sys


def lines_of(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            line = line.strip()
            if line.startswith("--include "):
                yield from lines_of(os.path.join(os.path.dirname(path), line.split()[1]))
            elif line.startswith("--define ") or line and not line.startswith("--"):
                yield line


def text_of(path):
    """The lines of a command, its names replaced by their numbers."""
    names, kept = {}, []
    for line in lines_of(path):
        if line.startswith("--define "):
            words = line.split()[1:]
            names.update(zip(words[::2], words[1::2]))
        else:
            kept.append(line)
    return [re.sub(r"\b[A-Z_]+\b", lambda m: names.get(m[0], m[0]), line) for line in kept]


def quoted(line):
    return '    "' + line.replace("\\", "\\\\").replace('"', '\\"') + '\\n"'


def main(output, array, header, commands):
    parts = ['/* Made from the Lua files by embed.py. */', '#include "%s"' % header, ""]
    parts.append("const char *const %s[] = {" % array)
    for path in commands:
        parts += list(map(quoted, text_of(path)))
        parts[-1] += ", /* " + os.path.basename(path) + " */"
    parts.append("};")
    with open(output, "w", encoding="utf-8") as file:
        file.write("\n".join(parts) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4:])
