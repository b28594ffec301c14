"""Turns the rows of a benchmark into Markdown: medians over the rounds, spread, ratios within a round, goals."""
import statistics

SCENARIOS = {
    "a": "one worker, its own lock: pairs of acquire and release per second",
    "b": "32 workers, a lock each: pairs per second",
    "c": "32 workers, one lock: changes of owner per second",
    "d": "50 workers × 100 deductions from a stock, under one lock: deductions per second",
    "f": "8 processes: operations per second",
    "g": "one command after the other: commands per second",
}
KINDS = ["raw", "peer", "before", "dibs"]


def median(values):
    values = [v for v in values if v is not None]
    return statistics.median(values) if values else None


def show(value, digits=0):
    return "–" if value is None else f"{value:,.{digits}f}"


def rate(value):
    return "–" if value is None else f"{value:,.0f}" if value < 10000 else f"{value / 1000:,.1f}k"


def spread(values):
    middle = median(values)
    return f"{min(values) / middle:.2f}–{max(values) / middle:.2f}" if middle and len(values) > 1 else "one round"


def verdict(met):
    return "met" if met else "**missed**"


def one_line(row):
    """What is printed as each run ends."""
    head = f"round {row['round']}  {row['engine']:10} {row['scenario']:4} {row['name']:20}"
    if row["scenario"] == "hold":
        return f"{head} {row['count']:7,} held  client {row['client_cpu_percent']} % of a core, {row['bytes']} bytes per lock"
    count = f" {row['count']:7,} waiting" if row["scenario"] == "wait" else ""
    return (f"{head}{count} {row['rate']:9,.0f}/s  p50 {row['p50_us']:,.0f} µs  p99 {row['p99_us']:,.0f} µs  "
            f"most/least {row['most']}/{row['least']}  server commands {row.get('commands', '–')}")


class Rows:
    def __init__(self, rows):
        self.rows = rows

    def of(self, engine, scenario, name=None, **more):
        return [r for r in self.rows if r["engine"] == engine and r["scenario"] == scenario
                and name in (None, r["name"]) and all(r.get(k) == v for k, v in more.items())]

    def engines(self):
        return list(dict.fromkeys(r["engine"] for r in self.rows))

    def names(self, engine, scenario):
        group = self.of(engine, scenario)
        return sorted(dict.fromkeys(r["name"] for r in group),
                      key=lambda n: KINDS.index(next(r["kind"] for r in group if r["name"] == n)))

    def title(self, engine, scenario, name):
        return self.of(engine, scenario, name)[0]["title"]

    def kind(self, engine, scenario, name):
        return self.of(engine, scenario, name)[0]["kind"]

    def rate(self, engine, scenario, name):
        return median([r["rate"] for r in self.of(engine, scenario, name)])

    def wait_rate(self, engine, count):
        return median([r["rate"] for r in self.of(engine, "wait", count=count)])

    def ratios(self, engine, scenario, mine, other):
        """Round by round."""
        others = {r["round"]: r["rate"] for r in self.of(engine, scenario, other)}
        return [r["rate"] / others[r["round"]] for r in self.of(engine, scenario, mine) if others.get(r["round"])]


def fairness(row):
    return row["most"] / row["least"] if row.get("least") else None


def entrant_line(rows, engine, scenario, name):
    group = rows.of(engine, scenario, name)
    rates = [r["rate"] for r in group]
    middle = {k: median([r.get(k) for r in group]) for k in
              ("p50_us", "p99_us", "cpu_us", "server_us", "commands", "memory_kb")}
    fair = median([fairness(r) for r in group]) if scenario in "bcd" else None
    wrong = "" if all(not r["failed"] for r in group) else " **FAILED**"
    part = "" if all(r.get("complete", True) for r in group) else " †"
    return (f"| {scenario} | {group[0]['title'] if group[0]['kind'] != 'dibs' or scenario in 'fg' else name} "
            f"| {rate(median(rates))} ({spread(rates)}){part}{wrong} | {show(middle['p50_us'])} | {show(middle['p99_us'])} "
            f"| {show(fair, 1)} | {show(middle['commands'], 1)} | {show(middle['cpu_us'])} | {show(middle['server_us'])} "
            f"| {show(middle['memory_kb'] / 1024 if middle['memory_kb'] else None, 1)} |")


def ratio_lines(rows, engine):
    for scenario in SCENARIOS:
        names = rows.names(engine, scenario)
        for mine in (n for n in names if n.startswith("dibs ")):
            found = [(o, rows.ratios(engine, scenario, mine, o)) for o in names if rows.kind(engine, scenario, o) != "dibs"
                     and (not o.startswith("before") or o.split()[1] == mine.split()[1])]
            for other, ratios in found:
                if ratios:
                    lowest_highest = f" ({min(ratios):.2f}–{max(ratios):.2f})" if len(ratios) > 1 else ""
                    yield f"| {scenario} | {mine} ÷ {other} | {median(ratios):.2f}{lowest_highest} |"


def wait_table(rows, engine):
    counts = sorted({r["count"] for r in rows.of(engine, "wait")})
    if not counts:
        return
    yield from ("", "| waiting | processes | hand-overs/s (spread) | cost beside the shortest queue | p50 µs | p99 µs | commands | client CPU µs | server CPU µs |",
                "|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    base = median([r["rate"] for r in rows.of(engine, "wait", count=counts[0])])
    for count in counts:
        group = rows.of(engine, "wait", count=count)
        rates = [r["rate"] for r in group]
        m = {k: median([r.get(k) for r in group]) for k in ("p50_us", "p99_us", "commands", "cpu_us", "server_us", "processes")}
        cost = base / median(rates) if median(rates) else None
        yield (f"| {count:,} | {m['processes']:.0f} | {rate(median(rates))} ({spread(rates)}) | {show(cost, 2)} | {show(m['p50_us'])} "
               f"| {show(m['p99_us'])} | {show(m['commands'], 1)} | {show(m['cpu_us'])} | {show(m['server_us'])} |")


def hold_table(rows, engine):
    group = rows.of(engine, "hold")
    if not group:
        return
    yield from ("", "| held locks | renewals | client CPU, % of a core | bytes per lock |", "|---:|---:|---:|---:|")
    for r in sorted(group, key=lambda r: r["count"]):
        size = "–" if r["count"] < 1000 else f"{r['bytes']:,}"  # too few for a figure per lock
        yield f"| {r['count']:,} | {r['renewals']:,} | {r['client_cpu_percent']} | {size} |"


def engine_part(rows, engine):
    yield from ("", f"## {engine}", "")
    if any(rows.of(engine, s) for s in SCENARIOS):
        yield from ("| | | per second (spread) | p50 µs | p99 µs | most/least | server commands | client CPU µs | server CPU µs | client MB |",
                    "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
        for scenario in SCENARIOS:
            for name in rows.names(engine, scenario):
                yield entrant_line(rows, engine, scenario, name)
        ratios = list(ratio_lines(rows, engine))
        if ratios:
            yield from ("", "| | ratio in the same round | median (range) |", "|---|---|---:|", *ratios)
    yield from wait_table(rows, engine)
    yield from hold_table(rows, engine)


def compare_lines(rows, last):
    """What changed since the last committed run. The two did not run side by side: only large steps mean something."""
    old = Rows(last["rows"])
    yield from ("", f"## Beside the run of {last['machine']['date']}", "", "| | | rate now ÷ then |", "|---|---|---:|")
    for engine in rows.engines():
        for scenario in SCENARIOS:
            for name in rows.names(engine, scenario):
                then = old.rate(engine, scenario, name)
                if rows.kind(engine, scenario, name) == "dibs" and then:
                    yield f"| {engine} | {scenario}: {name} | {rows.rate(engine, scenario, name) / then:.2f} |"


HEAD = """Written by `./dev bench` ([how it measures](../../bench/README.md)). Rates are medians of the rounds, in brackets the lowest and highest as a share of the median. Ratios are taken
within a round, where all ran one after the other. *most/least*: turns of the worker that was served most, over that of the one served least. *Server commands*: what the server counted
while the clock ran, per operation: commands (Redis), transactions (PostgreSQL), statements (MariaDB), packets (ZooKeeper), messages (etcd). CPU is per operation, memory that of all client
processes together. † not everything was sold in time. Exclusion and growing fences were checked in all runs."""


def markdown(rows, machine, failures, missing=(), last=None, pictures=(), goals=()):
    """The whole page; `goals` are lines of it (goals.py)."""
    table = Rows(rows)
    rounds = max((r["round"] for r in rows), default=0)
    lines = ["# dibs beside raw limits and other libraries", "", HEAD, "",
             f"{machine['date']}, version {machine['version']}, {machine['cores']} cores ({machine['cpu']}), Linux {machine['kernel']}, load "
             f"{machine['load']} at the start and {machine.get('load_after', '?')} at the end. Rounds: {rounds}. "
             + ", ".join(f"{k} {v}" for k, v in machine.get("servers", {}).items()) + "."]
    if max(machine["load"], machine.get("load_after") or 0) > 4:
        lines += ["", "**The machine was shared with other work while this ran: read the ratios, not the rates.**"]
    if missing:
        lines += ["", f"Not installed, and left out: {', '.join(missing)}."]
    lines += [f"\n![{title}]({name})" for name, title in pictures]
    lines += ["", *(f"- {key}: {text}" for key, text in SCENARIOS.items()), *goals]
    for engine in table.engines():
        lines += engine_part(table, engine)
    if last:
        lines += compare_lines(table, last)
    if failures:
        lines += ["", "## Failures", ""] + [f"- {f}" for f in failures]
    return "\n".join(lines).replace(" (one round)", "") + "\n"
