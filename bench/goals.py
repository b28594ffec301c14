"""What the figures should be, and whether they are: the first table of the page. A ratio is the median of the rounds; the
goal holds for each shape that the row names."""
import dataclasses

from summary import Rows, fairness, median, verdict

PEERS = "the best other library"
BOTH = ("each", "shared")


@dataclasses.dataclass(frozen=True)
class Goal:
    engine: str
    scenario: str
    beside: str
    least: float
    shapes: tuple = ("each",)


def goals(engine, scenarios, beside, least, shapes=("each",)):
    return [Goal(engine, s, beside, least, shapes if s != "a" else ("each",)) for s in scenarios]


RATIOS = [
    *goals("redlock", "c", PEERS, 5), *goals("redlock", "d", PEERS, 2),
    *goals("postgresql", "cd", "pg-advisory", 0.5), *goals("mysql", "cd", "mysql-getlock", 0.5),
    *goals("zookeeper", "ab", "go-zookeeper", 1.0, BOTH), *goals("zookeeper", "cd", "go-zookeeper", 1.2, BOTH),
    *goals("etcd", "ab", "etcd-go", 1.05, BOTH), *goals("etcd", "cd", "etcd-go", 1.3, BOTH),
    *goals("redis", "b", "redis-set", 1.0, BOTH), *goals("redis", "c", "redis-blpop", 0.85, BOTH),
    *goals("redis", "d", "redis-blpop", 0.9, BOTH),
    *goals("sqlite", "c", "tooz-file", 1.0), *goals("sqlite", "d", "flock", 1.0),
    Goal("sqlite", "g", "flock true", 0.5), Goal("etcd", "g", "etcdctl lock", 10),
]
REDLOCK_CHANGES = 1000  # per second, with a handle for each of 32 processes
FAIR = 2                # most/least there
WAIT = 1.3              # cost of a hand-over with the longest queue, over that with the shortest
CPU = 5                 # percent of a core for renewing the most locks
BYTES = 512             # per held lock


def against(rows, goal, mine):
    if goal.beside != PEERS:
        return rows.ratios(goal.engine, goal.scenario, mine, goal.beside)
    peers = [n for n in rows.names(goal.engine, goal.scenario) if rows.kind(goal.engine, goal.scenario, n) == "peer"]
    best = {}
    for row in (r for n in peers for r in rows.of(goal.engine, goal.scenario, n)):
        best[row["round"]] = max(best.get(row["round"], 0), row["rate"])
    return [r["rate"] / best[r["round"]] for r in rows.of(goal.engine, goal.scenario, mine) if best.get(r["round"])]


def ratio_lines(rows):
    for goal in RATIOS:
        for shape in goal.shapes:
            mine = "dibs run true" if goal.scenario == "g" else f"dibs {shape}"
            found = median(against(rows, goal, mine))
            if found is not None:
                yield (f"| {goal.engine} | {goal.scenario}: {mine} ÷ {goal.beside} | at least {goal.least:g} | {found:.2f} "
                       f"| {verdict(found >= goal.least)} |")


def redlock_lines(rows):
    changes, sold = rows.of("redlock", "c", "dibs each"), rows.of("redlock", "d", "dibs each")
    if changes:
        rate, fair = median([r["rate"] for r in changes]), median([fairness(r) for r in changes])
        yield f"| redlock | c: dibs each, per second | at least {REDLOCK_CHANGES:,} | {rate:,.0f} | {verdict(rate >= REDLOCK_CHANGES)} |"
        shown = "–" if fair is None else f"{fair:.1f}"
        yield f"| redlock | c: most/least | at most {FAIR} | {shown} | {verdict(fair is not None and fair <= FAIR)} |"
    if sold:
        whole = sum(bool(r.get("complete")) for r in sold)
        yield f"| redlock | d: dibs each, all sold | every round | {whole} of {len(sold)} | {verdict(whole == len(sold))} |"


def growth_lines(rows):
    for engine in rows.engines():
        counts = sorted({r["count"] for r in rows.of(engine, "wait")})
        held = sorted(rows.of(engine, "hold"), key=lambda r: r["count"])
        if counts:
            most = rows.wait_rate(engine, counts[-1])
            cost = rows.wait_rate(engine, counts[0]) / most if most else None
            shown = "–" if cost is None else f"{cost:.2f}"
            yield (f"| {engine} | hand-over with {counts[-1]:,} waiting, beside {counts[0]} | at most {WAIT:g} | {shown} "
                   f"| {verdict(cost is not None and cost <= WAIT)} |")
        if held and held[-1]["count"] >= 1000:
            last = held[-1]
            yield (f"| {engine} | renewing {last['count']:,} locks, % of a client core | below {CPU} | {last['client_cpu_percent']} "
                   f"| {verdict(last['client_cpu_percent'] < CPU)} |")
            yield f"| {engine} | bytes per held lock | at most {BYTES} | {last['bytes']:,} | {verdict(last['bytes'] <= BYTES)} |"


def table(rows):
    """The lines of the page; none if nothing was measured that has a goal."""
    rows = Rows(rows)
    lines = [*ratio_lines(rows), *redlock_lines(rows), *growth_lines(rows)]
    return ["", "## Goals", "", "| engine | | goal | here | |", "|---|---|---|---:|---|", *lines] if lines else []
