#!/usr/bin/env python3
"""What a compiled program relies on: functions with their parameters, structures with the offsets of their members, and
the values of enums, compared with tests/project/layout.txt. What was added passes, what has changed or is gone does not: the
rules of docs/api-stability.md.

    test_layout.py           compares
    test_layout.py --renew   writes tests/project/layout.txt anew

abidw (abigail-tools) reads the layout from the debug information of a small library that names every function of the
headers: neither the library's own build nor its engines matter.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).resolve().parent
REFERENCE = HERE / "layout.txt"
HEADERS = ("dibs.h", "dibs_sql.h")
# Returned by pointer, or filled in up to a size that the caller gives: they may grow at their end.
GROWING = ("dibs_engine_info", "dibs_finding", "dibs_latency", "dibs_lock_info", "dibs_party", "dibs_stats")


def read_headers():
    return {name: (HERE.parents[1] / "include" / name).read_text() for name in HEADERS}


def functions_of(headers):
    code = re.sub(r"/\*.*?\*/", "", "".join(headers.values()), flags=re.S)
    return sorted(set(re.findall(r"DIBS_API[^;]*?\b(dibs_\w+)\(", code)))


def dump(headers):
    """abidw's description of a library with one variable for each function, of the type of its address."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for name, text in headers.items():
            (folder / name).write_text(text)
        lines = [f'#include "{name}"' for name in HEADERS]
        lines += [f"__typeof__(&{name}) of_{name};" for name in functions_of(headers)]
        (folder / "all.c").write_text("\n".join(lines) + "\n")
        subprocess.run(["cc", "-g", "-shared", "-fPIC", "-o", "all.so", "all.c"], cwd=folder, check=True)
        return xml.fromstring(subprocess.run(["abidw", "all.so"], cwd=folder, check=True, stdout=subprocess.PIPE).stdout)


class Layout:
    def __init__(self, headers):
        root = dump(headers)
        self.types = {e.get("id"): e for e in root.iter() if e.get("id")}
        self.lines = []
        for e in root.iter():
            if e.tag == "var-decl" and e.get("mangled-name"):
                pointer = self.types[e.get("type-id")]
                self.add_function("function " + e.get("name")[len("of_"):], self.types[pointer.get("type-id")])
            elif e.get("name", "").startswith("dibs"):
                self.add_type(e)
        self.lines = sorted(set(self.lines), key=natural)

    def name(self, type_id):
        e = self.types[type_id]
        inner = e.get("type-id")
        if e.tag == "pointer-type-def":
            return self.name(inner) + " *"
        if e.tag == "qualified-type-def":
            return self.name(inner) + " const"
        if e.tag == "array-type-def":
            return self.name(inner) + "".join(f"[{s.get('length')}]" for s in e.findall("subrange"))
        if e.tag == "function-type":
            return self.signature(e)
        return e.get("name")

    def signature(self, e):
        parameters = ", ".join(self.name(p.get("type-id")) for p in e.findall("parameter"))
        return f"({parameters}) {self.name(e.find('return').get('type-id'))}"

    def add_function(self, what, e):
        self.lines.append(f"{what} {self.signature(e)}")

    def add_type(self, e):
        name = e.get("name")
        if e.tag == "enum-decl":
            self.lines += [f"enum {name} {v.get('value')} {v.get('name')}" for v in e.findall("enumerator")]
        elif e.tag == "class-decl" and e.get("size-in-bits"):
            self.lines.append(f"struct {name} {int(e.get('size-in-bits')) // 8} bytes")
            self.lines += [self.member(name, m) for m in e.findall("data-member")
                           if m.find("var-decl").get("name") != "reserved"]
        elif e.tag == "typedef-decl" and self.name(e.get("type-id")).startswith("("):
            self.lines.append(f"callback {name} {self.name(e.get('type-id'))}")

    def member(self, struct, m):
        v = m.find("var-decl")
        return f"struct {struct} at {int(m.get('layout-offset-in-bits')) // 8} {v.get('name')}: {self.name(v.get('type-id'))}"


def natural(line):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", line)]


def size_in(line):
    found = re.fullmatch(r"struct (\w+) (\d+) bytes", line)
    return (found[1], int(found[2])) if found else (None, 0)


def differences(old, new):
    """The lines of `old` that `new` does not keep."""
    sizes = dict(size_in(line) for line in new)
    lost = [line for line in old if line not in new]
    return [line for line in lost
            if size_in(line)[0] not in GROWING or sizes.get(size_in(line)[0], 0) < size_in(line)[1]]


def changed(headers, old, new):
    text = headers["dibs.h"]
    assert text.count(old) >= 1, old
    return {**headers, "dibs.h": text.replace(old, new, 1)}


OPTIONS = "typedef struct dibs_lock_options {\n"
BAD = (
    ("a member before the others", OPTIONS, OPTIONS + "    int64_t novelty;\n"),
    ("a larger structure", "    uint64_t reserved[8];\n} dibs_error;", "    uint64_t reserved[9];\n} dibs_error;"),
    ("a smaller reserve with nothing in its place", "    uint64_t reserved[8];\n} dibs_error;",
     "    uint64_t reserved[7];\n} dibs_error;"),
    ("another type of a member", "    uint32_t weight;     /* sem", "    int32_t weight;     /* sem"),
    ("a member of a growing structure that moved", "typedef struct dibs_stats {\n",
     "typedef struct dibs_stats {\n    uint64_t novelty;\n"),
    ("a parameter", "dibs_renew(dibs_grant *g, dibs_error *err);", "dibs_renew(dibs_grant *g);"),
    ("a function that is gone", "DIBS_API void dibs_cancel(dibs *d, const char *name);", ""),
    ("another value of an enum", "    DIBS_LOSS_NONE,\n", "    DIBS_LOSS_NOVEL,\n    DIBS_LOSS_NONE,\n"),
    ("the parameters of a callback", "(*dibs_once_lost_fn)(void *data, dibs_once *o)",
     "(*dibs_once_lost_fn)(dibs_once *o, void *data)"),
)
GOOD = (
    ("a member in the place of reserved ones", "    uint64_t reserved[8];\n} dibs_error;",
     "    uint64_t novelty;\n    uint64_t reserved[7];\n} dibs_error;"),
    ("a function", "DIBS_API void dibs_close(dibs *d);", "DIBS_API void dibs_close(dibs *d);\nDIBS_API int dibs_novelty(dibs *d);"),
    ("a status", "1)\n\n#define DIBS_STATUS_ROW", "1) ROW(99, NOVEL, \"\", NONE, 500, 1)\n\n#define DIBS_STATUS_ROW"),
    ("growth at the end of a structure that may", "} dibs_stats;", "    uint64_t novelty;\n} dibs_stats;"),
)


def report(number, ok, what):
    print(f"{'ok' if ok else 'not ok'} {number} - {what}")
    return ok


def main():
    headers = read_headers()
    now = Layout(headers).lines
    if sys.argv[1:] == ["--renew"]:
        REFERENCE.write_text("\n".join(now) + "\n")
        return 0
    lost = differences(REFERENCE.read_text().splitlines(), now)
    print(f"1..{1 + len(BAD) + len(GOOD)}")
    for line in lost:
        print(f"# changed or gone: {line}")
    good = report(1, not lost, "programs compiled against an earlier header keep working")
    number = 1
    for cases, pass_it in ((BAD, False), (GOOD, True)):
        for what, old, new in cases:
            number += 1
            other = Layout(changed(headers, old, new)).lines
            noticed = differences(now, other)
            ok = bool(noticed) != pass_it and (not pass_it or other != now)
            good &= report(number, ok, f"{'may be added' if pass_it else 'noticed'}: {what}")
    return 0 if good else 1


sys.exit(main())
