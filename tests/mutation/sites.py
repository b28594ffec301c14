"""Finds what can be changed in a C source file, and writes the file with all changes in it, each behind a switch.

`a < b` becomes `(DIBS__MUTANT(7) ? (a <= b) : DIBS__MUTANT(8) ? (a >= b) : (a < b))`. Only one mutant is selected at a
time, so that a mutated expression has its operands as they were. Expressions that the compiler must know (sizes, case
labels, initialisers of static objects) and the insides of macros are left alone."""

import clang.cindex
from clang.cindex import CursorKind as Kind, TypeKind

RELATIONAL = {'<': ('<=', '>='), '<=': ('<', '>'), '>': ('>=', '<='), '>=': ('>', '<'), '==': ('!=',), '!=': ('==',)}
ARITHMETIC = {'+': '-', '-': '+', '*': '/', '+=': '-=', '-=': '+=', '*=': '/='}
POINTERS = (TypeKind.POINTER, TypeKind.INCOMPLETEARRAY, TypeKind.CONSTANTARRAY)
CONSTANT_PARTS = (Kind.CXX_UNARY_EXPR, Kind.TYPE_REF)  # sizeof and its like
CONDITIONS = {Kind.IF_STMT: 0, Kind.WHILE_STMT: 0, Kind.DO_STMT: 1, Kind.CONDITIONAL_OPERATOR: 0}
SMALL = 16


class Mutant:
    """One change. `before` and `after` are texts of the source; `key` stays the same when lines move."""

    def __init__(self, number, path, line, function, before, after):
        self.number, self.path, self.line = number, path, line
        self.function, self.before, self.after = function, ' '.join(before.split()), ' '.join(after.split())
        self.key = None

    def __str__(self):
        return '%s:%d: %s: `%s` -> `%s`' % (self.path, self.line, self.function, self.before, self.after)


class Site:
    """A stretch of the text and what may stand there instead."""

    def __init__(self, start, end, before, pattern='({})'):
        self.start, self.end, self.before, self.pattern = start, end, before, pattern
        self.alternatives = []  # (text to compile, text to show)


def number_changes(text):
    """Other values for an integer literal. A unit more or less of something large is seldom seen from outside."""
    if text in ('true', 'false'):
        return ['false' if text == 'true' else 'true']
    digits = text.rstrip('uUlL')
    octal = len(digits) > 1 and digits.isdigit() and digits.startswith('0')
    value, suffix = int(digits, 8 if octal else 0), text[len(digits):]
    if value == 0:
        return ['1' + suffix]
    if value <= SMALL:
        return ['%d%s' % (value - 1, suffix), '%d%s' % (value + 1, suffix)]
    return ['%d%s' % (value // 2, suffix), '%d%s' % (value * 2, suffix)]


class Scanner:
    """Walks one parsed file."""

    def __init__(self, path, text, args):
        self.path, self.text, self.sites = path, text, {}
        options = clang.cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD
        self.unit = clang.cindex.Index.create().parse(path, args=args, options=options)
        errors = [d for d in self.unit.diagnostics if d.severity >= clang.cindex.Diagnostic.Error]
        if errors:
            raise SystemExit('%s: %s' % (path, errors[0]))
        self.in_macro = set()  # offsets
        for c in self.unit.cursor.get_children():
            if c.kind == Kind.MACRO_INSTANTIATION and self.is_here(c):
                self.in_macro.update(range(*self.span(c)))
        self.function, self.settled = None, set()

    def is_here(self, cursor):
        return cursor.location.file is not None and cursor.location.file.name == self.path

    @staticmethod
    def span(cursor):
        return cursor.extent.start.offset, cursor.extent.end.offset

    def source(self, cursor):
        start, end = self.span(cursor)
        return self.text[start:end]

    def is_in_macro(self, cursor):
        start, end = self.span(cursor)
        return start in self.in_macro and end - 1 in self.in_macro

    def add(self, cursor, shown, compiled=None, pattern='({})'):
        start, end = self.span(cursor)
        site = self.sites.setdefault((start, end, pattern), Site(start, end, self.text[start:end], pattern))
        site.function = self.function
        site.alternatives.append((compiled or '(%s)' % shown, shown))

    # ---- Kinds of change

    def operator_of(self, cursor, operands):
        return self.text[operands[0].extent.end.offset:operands[1].extent.start.offset].strip()

    def binary(self, cursor):
        operands = list(cursor.get_children())
        operator = self.operator_of(cursor, operands)
        left, right = map(self.source, operands)
        if operator in RELATIONAL:
            for other in RELATIONAL[operator]:
                self.add(cursor, '%s %s %s' % (left, other, right))
            if operator not in ('==', '!='):  # `x < 1` is `x <= 0`, which is there already
                self.settled |= {self.span(o) for o in operands}
        elif operator in ('&&', '||'):
            self.add(cursor, '(%s) %s (%s)' % (left, '||' if operator == '&&' else '&&', right))
            self.add(cursor, left, '!!(%s)' % left)
            self.add(cursor, right, '!!(%s)' % right)
        elif operator in ARITHMETIC and not any(o.type.get_canonical().kind in POINTERS for o in operands):
            self.add(cursor, '%s %s %s' % (left, ARITHMETIC[operator], right))

    def unary(self, cursor):
        text = self.source(cursor)
        if text.startswith('!'):
            self.add(cursor, text[1:], '!!(%s)' % text[1:])
        elif text.startswith('-') and text[1:].isdigit():  # a failure: that it is negative is what counts
            self.add(cursor, '0')
            self.add(cursor, text[1:])
            self.settled |= {self.span(o) for o in cursor.get_children()}
        elif text.startswith(('++', '--')) or (text.endswith(('++', '--')) and text[0] not in '*&~'):  # not `*at++`
            self.add(cursor, text.translate(str.maketrans('+-', '-+')) if '->' not in text
                     else text.replace('++', '\0').replace('--', '++').replace('\0', '--'))

    def condition(self, cursor):
        text = self.source(cursor)
        self.add(cursor, '!(%s)' % text, pattern='!!({})')

    def is_operation(self, cursor):
        """Its operator is changed anyway: to negate it once more shows nothing new."""
        while cursor.kind in (Kind.PAREN_EXPR, Kind.UNEXPOSED_EXPR):
            cursor = next(cursor.get_children())
        if cursor.kind == Kind.UNARY_OPERATOR:
            return self.source(cursor).startswith('!')
        return cursor.kind == Kind.BINARY_OPERATOR and \
            self.operator_of(cursor, list(cursor.get_children())) in (*RELATIONAL, '&&', '||')

    def early_return(self, body):
        """The function does nothing: void, or it returns 0, and true if it is a bool."""
        kind = self.result.get_canonical().kind
        start = body.extent.start.offset + 1
        site = Site(start, start, 'body')
        site.function = self.function
        for value in {TypeKind.VOID: [''], TypeKind.RECORD: []}.get(kind, ['0', '1'] if kind == TypeKind.BOOL else ['0']):
            site.alternatives.append(('return %s;' % value, ('return %s' % value).strip() + ' at once'))
        self.sites[(start, start, 'body')] = site

    # ---- The walk

    def statement(self, cursor):
        """A call whose value nobody uses."""
        if cursor.kind == Kind.CALL_EXPR and not self.is_in_macro(cursor):
            self.add(cursor, '(void)0', pattern='(void)({})')

    def visit(self, cursor):
        children = list(cursor.get_children())
        if cursor.kind in CONSTANT_PARTS:
            return
        if not self.is_in_macro(cursor):
            if cursor.kind in (Kind.BINARY_OPERATOR, Kind.COMPOUND_ASSIGNMENT_OPERATOR):
                self.binary(cursor)
            elif cursor.kind == Kind.UNARY_OPERATOR:
                self.unary(cursor)
            if cursor.kind in CONDITIONS:
                condition = children[CONDITIONS[cursor.kind]]
                if not self.is_operation(condition) and not self.is_in_macro(condition):
                    self.condition(condition)
        if cursor.kind == Kind.INTEGER_LITERAL:
            self.literal(cursor)
        self.visit_children(cursor, children)

    def literal(self, cursor):
        text = self.source(cursor)
        if self.span(cursor) in self.settled:
            return
        if text in ('true', 'false') or (text[:1].isdigit() and not self.is_in_macro(cursor)):
            for other in number_changes(text):
                self.add(cursor, other)

    def visit_children(self, cursor, children):
        skipped_until = 0
        if cursor.kind == Kind.VAR_DECL:
            if cursor.storage_class == clang.cindex.StorageClass.STATIC:
                return
            equals = self.source(cursor).find('=')
            skipped_until = cursor.extent.start.offset + equals if equals >= 0 else cursor.extent.end.offset
        for i, child in enumerate(children):
            if cursor.kind == Kind.CASE_STMT and i == 0:
                continue
            if child.extent.start.offset < skipped_until:
                continue
            if self.is_statement_of(cursor, i, children):
                self.statement(child)
            self.visit(child)

    @staticmethod
    def is_statement_of(parent, index, children):
        if parent.kind in (Kind.COMPOUND_STMT, Kind.DEFAULT_STMT):
            return True
        last = index == len(children) - 1
        if parent.kind in (Kind.FOR_STMT, Kind.WHILE_STMT, Kind.CASE_STMT):
            return last
        if parent.kind == Kind.DO_STMT:
            return index == 0
        return parent.kind == Kind.IF_STMT and index > 0

    def scan(self):
        for cursor in self.unit.cursor.get_children():
            if cursor.kind == Kind.FUNCTION_DECL and cursor.is_definition() and self.is_here(cursor):
                body = list(cursor.get_children())[-1]
                self.function, self.result = cursor.spelling, cursor.result_type
                self.early_return(body)
                self.visit(body)
        return sorted(self.sites.values(), key=lambda s: (s.start, -s.end))


def render(text, start, end, sites, numbers):
    """The text between start and end, with the sites in it behind switches. `sites` is taken from its front."""
    out, at = [], start
    while sites and sites[0].start < end and sites[0].end <= end:
        site = sites.pop(0)
        out.append(text[at:site.start])
        at = site.end
        if site.start == site.end:
            out.append(''.join(' if (DIBS__MUTANT(%d)) %s' % (numbers[id(site)] + i, compiled)
                               for i, (compiled, _) in enumerate(site.alternatives)))
            continue
        inner = site.pattern.format(render(text, site.start, site.end, sites, numbers))
        switch = ''.join('DIBS__MUTANT(%d) ? %s : ' % (numbers[id(site)] + i, compiled)
                         for i, (compiled, _) in enumerate(site.alternatives))
        out.append('(%s%s)' % (switch, inner))
    out.append(text[at:end])
    return ''.join(out)


def instrument(path, text, args, first, name=None):
    """(the text with every mutant behind its switch, the mutants). They are numbered from `first`."""
    sites = Scanner(path, text, args).scan()
    mutants, numbers, counts = [], {}, {}
    for site in sites:
        numbers[id(site)] = first + len(mutants)
        line = text.count('\n', 0, site.start) + 1
        for _, shown in site.alternatives:
            m = Mutant(first + len(mutants), name or path, line, site.function, site.before, shown)
            base = '%s %s `%s` -> `%s`' % (m.path, m.function, m.before, m.after)
            counts[base] = counts.get(base, 0) + 1
            m.key = base + (' #%d' % counts[base] if counts[base] > 1 else '')
            mutants.append(m)
    body = render(text, 0, len(text), list(sites), numbers)
    return '#include "mutant.h"\n#line 1 "%s"\n%s' % (name or path, body), mutants
