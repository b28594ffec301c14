"""Turns the rows of a benchmark into Markdown: medians over the rounds, spread, ratios within a round, goals."""
import statistics

SCENARIOS = {
    "a": "a: one thread, its own lock (pairs/s)",
    "b": "b: 32 threads, a lock each (pairs/s)",
    "c": "c: 32 threads, one lock (changes of owner/s)",
    "d": "d: stock deduction, 50 threads × 100 (deductions/s)",
}
# dibs over the raw peer, in the same round.
RATIO_GOALS = {
    ("redis", "a"): [("redis-set", 0.95)],
    ("redis", "b"): [("redis-set", 1.5)],
    ("redis", "c"): [("redis-blpop", 0.7), ("redis-blpop-lua", 0.9)],
    ("redis", "d"): [("redis-blpop", 0.85)],
    ("redlock", "a"): [("redlock-set", 0.95)],
    ("redlock", "b"): [("redlock-set", 1.5)],
    ("sqlite", "a"): [("sqlite-row", 0.8)],
    ("sqlite", "b"): [("sqlite-row", 1.0)],
    ("sqlite", "d"): [("sqlite-row", 3.0)],
    ("postgresql", "a"): [("pg-row", 1.15)],
    ("postgresql", "b"): [("pg-row", 1.0)],
    ("mysql", "a"): [("mysql-row", 0.9)],
    ("mysql", "b"): [("mysql-row", 1.0)],
    ("zookeeper", "a"): [("zookeeper-node", 0.95)],
    ("etcd", "d"): [("etcd-lock", 1.3)],
}
# dibs in that scenario over the raw peer alone (a): a hand-off is durable, and no raw lock is.
PAIR_GOALS = {
    ("postgresql", "c"): ("pg-row", 1.0),
    ("postgresql", "d"): ("pg-row", 1.0),
    ("mysql", "c"): ("mysql-row", 1.0),
    ("mysql", "d"): ("mysql-row", 1.0),
}
# What the best peer reached on a machine of two cores, times the goal.
RATE_GOALS = {("sqlite", "c"): 8700, ("redlock", "c"): 1175, ("redlock", "d"): 1200,
              ("zookeeper", "b"): 3200, ("zookeeper", "c"): 780, ("zookeeper", "d"): 650,
              ("etcd", "a"): 570, ("etcd", "b"): 2300, ("etcd", "c"): 400}
UNITS = {"a": "pairs", "b": "pairs", "c": "changes of owner", "d": "deductions"}
FAIRNESS_GOAL = 1.1
REQUEST_GOALS = {("redis", "a"): 2, ("redis", "c"): 3}
WAIT_GOAL = 1.3   # cost of a hand-off with the longest line, over that with the shortest
CPU_GOAL = 5      # percent of a core for renewing the most locks
BYTES_GOAL = 512  # a held lock, beside its name


def median(values):
    return statistics.median(values) if values else None


def show(value, digits=0, unit=""):
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


def spread(values):
    middle = median(values)
    return f"{100 * (max(values) - min(values)) / middle:.0f} %" if middle and len(values) > 1 else "one round"


def fairness(row):
    return row["most"] / row["least"] if row.get("least") else None


def one_line(row):
    """What is printed as each run ends."""
    head = f"round {row['round']}  {row['engine']:7} {row['scenario']:4} {row['title']:28}"
    if row["scenario"] == "hold":
        return (f"{head} {row['count']:7,} held  client {row['client_cpu_percent']} %, server "
                f"{row['server_cpu_percent']} % of a core, {row['bytes_a_lock']} bytes a lock")
    if row["scenario"] == "wait":
        return f"{head} {row['count']:7,} waiting  {row['rate']:9,.0f}/s  entering {row['enter_us']} µs"
    locks = f" {row['locks']} locks" if row["scenario"] == "c" and row["locks"] > 1 else ""
    return (f"{head} {row['rate']:9,.0f}/s  p50 {row['p50_us']:,.0f} µs  p99 {row['p99_us']:,.0f} µs  "
            f"most/least {row['most']}/{row['least']}{locks}")


class Rows:
    def __init__(self, rows):
        self.rows = rows

    def of(self, engine, scenario, peer=None, **more):
        return [r for r in self.rows if r["engine"] == engine and r["scenario"] == scenario
                and peer in (None, r["peer"]) and all(r.get(k) == v for k, v in more.items())]

    def threads(self, engine, scenario, peer=None):
        """Runs of a–d proper: the growth runs of c have several locks."""
        return [r for r in self.of(engine, scenario, peer) if scenario != "c" or r["locks"] == 1]

    def engines(self):
        return list(dict.fromkeys(r["engine"] for r in self.rows))

    def ratios(self, engine, scenario, raw):
        """dibs over raw, each pair measured one after the other."""
        when = lambda r: (r["round"], r["repeat"])
        other = {when(r): r["rate"] for r in self.threads(engine, scenario, raw)}
        return [r["rate"] / other[when(r)] for r in self.threads(engine, scenario, "dibs") if other.get(when(r))]


    def pair_ratios(self, engine, scenario, raw):
        """dibs in a scenario over the raw peer alone, round by round."""
        alone = {}
        for r in self.threads(engine, "a", raw):
            alone.setdefault(r["round"], []).append(r["rate"])
        return [r["rate"] / median(alone[r["round"]]) for r in self.threads(engine, scenario, "dibs")
                if alone.get(r["round"])]


def scenario_table(rows, engine, scenario):
    peers = dict.fromkeys(r["peer"] for r in rows.threads(engine, scenario))
    for peer in sorted(peers, key=lambda p: p == "dibs"):
        group = rows.threads(engine, scenario, peer)
        rates = [r["rate"] for r in group]
        middle = {k: median([r[k] for r in group if k in r]) for k in
                  ("p50_us", "p99_us", "cpu_us", "server_us", "requests", "in_scripts")}
        fair = median([f for f in map(fairness, group) if f])
        exact = "" if scenario != "d" else " exact" if all(r["exact"] for r in group) else " **NOT EXACT**"
        yield (f"| {scenario} | {group[0]['title']} | {show(median(rates))} ({spread(rates)}){exact} "
               f"| {show(middle['p50_us'])} | {show(middle['p99_us'])} "
               f"| {show(fair if scenario != 'a' else None, 2)} | {show(middle['requests'], 2)} "
               f"| {show(middle['in_scripts'], 1)} | {show(middle['cpu_us'], 1)} | {show(middle['server_us'], 1)} |")


def verdict(met):
    return "met" if met else "**missed**"


def goal_lines(rows, engine, scenario):
    mine = rows.threads(engine, scenario, "dibs")
    if not mine:
        return
    for raw, goal in [*RATIO_GOALS.get((engine, scenario), []), ("before", 0.97)]:
        ratios = rows.ratios(engine, scenario, raw)
        if ratios:
            title = rows.threads(engine, scenario, raw)[0]["title"]
            yield (f"| {scenario} | dibs ÷ {title} | {median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) "
                   f"| ≥ {goal} | {verdict(median(ratios) >= goal)} |")
    raw, goal = PAIR_GOALS.get((engine, scenario), (None, None))
    ratios = rows.pair_ratios(engine, scenario, raw) if raw else []
    if ratios:
        title = rows.threads(engine, "a", raw)[0]["title"]
        yield (f"| {scenario} | dibs ÷ {title}, alone (a) | {median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) "
               f"| ≥ {goal} | {verdict(median(ratios) >= goal)} |")
    rate = median([r["rate"] for r in mine])
    goal = RATE_GOALS.get((engine, scenario))
    if goal:
        yield f"| {scenario} | {UNITS[scenario]} a second | {show(rate)} | ≥ {show(goal)} | {verdict(rate >= goal)} |"
    fair = median([f for f in map(fairness, mine) if f])
    if scenario == "c" and fair:
        yield f"| c | most ÷ least served | {fair:.2f} | ≤ {FAIRNESS_GOAL} | {verdict(fair <= FAIRNESS_GOAL)} |"
    requests = median([r["requests"] for r in mine if "requests" in r])
    goal = REQUEST_GOALS.get((engine, scenario))
    if goal and requests:
        # Keep-alives and the few requests that open the handle are in it.
        yield (f"| {scenario} | client requests an operation | {requests:.2f} | ≤ {goal} "
               f"| {verdict(requests <= goal + 0.05)} |")


def wait_table(rows, engine):
    counts = sorted({r["count"] for r in rows.of(engine, "wait")})
    if not counts:
        return
    yield from ("", "| waiting requests | hand-offs/s (spread) | cost beside the shortest line | client CPU µs | entering µs |",
                "|---:|---:|---:|---:|---:|")
    base = median([r["rate"] for r in rows.of(engine, "wait", count=counts[0])])
    for count in counts:
        group = rows.of(engine, "wait", count=count)
        rates = [r["rate"] for r in group]
        yield (f"| {count:,} | {show(median(rates))} ({spread(rates)}) | {base / median(rates):.2f} (goal ≤ {WAIT_GOAL}) "
               f"| {show(median([r['cpu_us'] for r in group]), 1)} | {show(median([r['enter_us'] for r in group]))} |")


def hold_table(rows, engine):
    group = rows.of(engine, "hold")
    if not group:
        return
    yield from ("", "| held locks | renewals | client CPU | server CPU | bytes a lock | beside its name |",
                "|---:|---:|---:|---:|---:|---:|")
    for r in sorted(group, key=lambda r: r["count"]):
        few = r["count"] < 1000  # too few for a figure a lock
        yield (f"| {r['count']:,} | {r['renewals']:,} | {r['client_cpu_percent']} % (goal < {CPU_GOAL}) "
               f"| {'–' if r['engine'] in ('memory', 'sqlite') else r['server_cpu_percent']} % "
               f"| {'–' if few else r['bytes_a_lock']} | {'–' if few else r['bytes_beside_name']} (goal ≤ {BYTES_GOAL}) |")


def many_locks(rows, engine):
    group = [r for r in rows.of(engine, "c", "dibs") if r["locks"] > 1]
    if group:
        rates = [r["rate"] for r in group]
        yield from ("", f"{group[0]['locks']} contended locks at once, {group[0]['workers']} threads: "
                        f"{show(median(rates))} changes of owner a second ({spread(rates)}).")


def engine_part(rows, engine):
    used = [s for s in SCENARIOS if rows.threads(engine, s)]
    yield from ("", f"## {engine}", "")
    if used:
        yield from ("| | | rate (spread) | p50 µs | p99 µs | most/least | client requests | in scripts | client CPU µs | server CPU µs |",
                    "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
        for scenario in used:
            yield from scenario_table(rows, engine, scenario)
        goals = [line for s in used for line in goal_lines(rows, engine, s)]
        if goals:
            yield from ("", "| | what | median (range) | goal | |", "|---|---|---:|---:|---|", *goals)
    yield from wait_table(rows, engine)
    yield from many_locks(rows, engine)
    yield from hold_table(rows, engine)


def markdown(rows, machine, failures):
    """The whole page."""
    table = Rows(rows)
    rounds = max((r["round"] for r in rows), default=0)
    lines = ["# dibs beside the raw limits", "",
             f"{machine['date']}, {machine['cores']} cores ({machine['cpu']}), Linux {machine['kernel']}, load "
             f"{machine['load']:.1f} at the start. {rounds} rounds, raw and dibs in turn; medians; ratios within a "
             "round. Client requests and CPU are for one pair, change of owner or deduction.", ""]
    if machine["load"] > 0.5:
        lines += ["**The machine was not idle: take the figures as doubtful.**", ""]
    lines += [f"- {text}" for text in SCENARIOS.values()]
    for engine in table.engines():
        lines += engine_part(table, engine)
    if failures:
        lines += ["", "## Failures", ""] + [f"- {f}" for f in failures]
    return "\n".join(lines) + "\n"
