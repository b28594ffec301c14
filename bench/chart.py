"""The pictures of docs/bench: who hands a lock over how fast, and what growth costs. Plain SVG, for light and dark pages."""
import math
from html import escape

NAMES = {"sqlite": "SQLite", "redis": "Redis", "redlock": "Redlock, 5 nodes", "postgresql": "PostgreSQL", "mysql": "MariaDB",
         "zookeeper": "ZooKeeper", "etcd": "etcd", "memory": "memory"}
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-size: 17px; font-weight: 600 } .soft { fill: #57606a; font-size: 12px } .engine { font-weight: 600 }
.paper { fill: #ffffff } .line { stroke: #d0d7de; stroke-width: 1; fill: none }
.raw { fill: #c5ccd3 } .peer { fill: #8c959f } .dibs { fill: #1a7f64 } .shared { fill: #6cc1a5 }
.curve { fill: none; stroke-width: 2.5; stroke-linejoin: round }
.c0 { stroke: #0969da; fill: #0969da } .c1 { stroke: #cf222e; fill: #cf222e } .c2 { stroke: #bf8700; fill: #bf8700 }
.c3 { stroke: #1a7f64; fill: #1a7f64 } .c4 { stroke: #8250df; fill: #8250df } .c5 { stroke: #bc4c00; fill: #bc4c00 }
.c6 { stroke: #57606a; fill: #57606a } .curve { fill: none } text[class^=c] { stroke: none }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .soft { fill: #9198a1 } .paper { fill: #0d1117 } .line { stroke: #3d444d }
.raw { fill: #4a525b } .peer { fill: #7d8590 } .dibs { fill: #3fb28f } .shared { fill: #24705a }
.c0 { stroke: #58a6ff; fill: #58a6ff } .c1 { stroke: #ff7b72; fill: #ff7b72 } .c2 { stroke: #d29922; fill: #d29922 }
.c3 { stroke: #3fb950; fill: #3fb950 } .c4 { stroke: #bc8cff; fill: #bc8cff } .c5 { stroke: #f0883e; fill: #f0883e }
.c6 { stroke: #9198a1; fill: #9198a1 } .curve { fill: none } }
</style>"""


class Picture:
    def __init__(self, width, height, title):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
                      f'role="img" aria-label="{escape(title)}">', STYLE, f'<rect class="paper" width="{width}" height="{height}"/>']

    def text(self, x, y, what, kind="", anchor="start"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(what)}</text>')

    def bar(self, x, y, width, height, kind):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height}" rx="2" class="{kind}"/>')

    def curve(self, points, kind):
        self.parts.append(f'<polyline class="curve {kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
        self.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="{kind}"/>' for x, y in points]

    def line(self, x1, y1, x2, y2):
        self.parts.append(f'<line class="line" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def __str__(self):
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def show(value):
    return f"{value:,.0f}"


BAR, GAP, LEFT, ROOM = 17, 14, 150, 330


def bars_of(rows, engine, scenario):
    """The best other library, and dibs in both shapes: (class, label, rate)."""
    def rate(name):
        return rows.rate(engine, scenario, name)
    others = [(rate(n), rows.title(engine, scenario, n)) for n in rows.names(engine, scenario) if rows.kind(engine, scenario, n) == "peer"]
    if others:
        best, title = max(others)
        yield "peer", title, best
    for kind, name, label in (("shared", "dibs shared", "dibs, one handle"), ("dibs", "dibs each", "dibs, a handle each")):
        if rate(name):
            yield kind, label, rate(name)


def handovers(rows, machine):
    """One group of bars per engine, each with its own scale: rates of different engines are not to be compared."""
    groups = [(e, list(bars_of(rows, e, "c"))) for e in rows.engines()]
    groups = [(e, bars) for e, bars in groups if bars]
    height = 92 + sum(len(bars) * (BAR + 3) + GAP for _, bars in groups)
    p = Picture(760, height, "Changes of owner per second of one lock")
    p.text(20, 30, "32 workers want one lock: how often per second does it change hands?", "title")
    p.text(20, 50, f"Longer is better. Each engine has its own scale. Median of the rounds, {machine['cores']} cores, client and server together, "
                   f"{machine['date'][:10]}.", "soft")
    y = 68
    for engine, bars in groups:
        most = max(rate for _, _, rate in bars)
        p.text(LEFT - 12, y + 13, NAMES[engine], "engine", "end")
        for kind, label, rate in bars:
            width = rate / most * ROOM
            p.bar(LEFT, y, width, BAR, kind)
            p.text(LEFT + width + 8, y + 13, f"{show(rate)}  {label}")
            y += BAR + 3
        y += GAP
    return str(p)


def growth(rows, machine):
    """What a hand-over costs with many waiters, over what it costs with ten."""
    curves = []
    for engine in rows.engines():
        rates = {c: rows.wait_rate(engine, c) for c in sorted({r["count"] for r in rows.of(engine, "wait")})}
        base = rates.get(10)
        if base and len(rates) > 1:
            curves.append((engine, [(c, base / r) for c, r in rates.items() if r]))
    if not curves:
        return None
    top = max(2, math.ceil(max(v for _, points in curves for _, v in points)))
    p = Picture(760, 400, "Cost of a hand-over with many waiters")
    p.text(20, 30, "Does a hand-over cost more when many are waiting?", "title")
    p.text(20, 50, "Time of one hand-over, as a multiple of that with 10 waiters; flat is best. Waiters are in up to 100 processes.", "soft")
    at_x = lambda count: 70 + (math.log10(count) - 1) / 3 * 520
    at_y = lambda value: 350 - value / top * 275
    for value in range(0, top + 1, max(1, top // 6)):
        p.line(70, at_y(value), 590, at_y(value))
        p.text(60, at_y(value) + 4, f"{value} ×", "soft", "end")
    for count in (10, 100, 1000, 10000):
        p.text(at_x(count), 370, show(count), "soft", "middle")
    p.text(330, 390, "waiting requests", "soft", "middle")
    low = 1000
    ends = sorted(((at_y(points[-1][1]), i) for i, (_, points) in enumerate(curves)), reverse=True)
    labels = {}
    for y, i in ends:  # from below; two labels must not cover each other
        low = min(y, low - 16)
        labels[i] = low
    for i, (engine, points) in enumerate(curves):
        p.curve([(at_x(c), at_y(v)) for c, v in points], f"c{i % 7}")
        p.text(604, labels[i] + 4, f"{NAMES[engine]} {points[-1][1]:.1f} ×", f"c{i % 7}")
    return str(p)
