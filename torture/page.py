"""The page guarantees.html: one file, no network, readable on a phone and in the dark. It looks like the lab's report
(lab/report.html)."""

import html

import publish

STYLE = '''
:root { --ink: #1d2433; --soft: #566074; --line: #dfe4ec; --paper: #ffffff; --page: #f5f7fb;
        --good: #14613f; --good-tint: #d3eee1; --bad: #a32020; --bad-tint: #f8d7d7; --open: #7a5200; --open-tint: #fbeccb;
        --none: #6b7488; --none-tint: #eef1f5; --mark: #2457c5; --shade: rgba(29, 36, 51, .18); }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9f0; --soft: #a3adc0; --line: #333b4b; --paper: #1b2130; --page: #131722;
          --good: #8fe0b8; --good-tint: #173a2b; --bad: #ff9d9d; --bad-tint: #4a1f24; --open: #f0c674; --open-tint: #40321a;
          --none: #97a1b5; --none-tint: #242b3a; --mark: #5b8def; --shade: rgba(0, 0, 0, .6); }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 36px 24px 80px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 10px; letter-spacing: -.01em; }
h2 { font-size: 22px; margin: 44px 0 6px; line-height: 1.25; }
p { margin: 0 0 12px; max-width: 80ch; }
.soft { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: 14px; margin: 22px 0 0; }
.tile, .card { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 14px 16px; }
.tile b { display: block; font-size: 26px; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 14px; line-height: 1.35; display: block; }
.card { padding: 16px 18px; margin-top: 14px; }
.scroll { overflow-x: auto; -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--soft); font-weight: 600; padding: 5px 8px; border-bottom: 1px solid var(--line); }
td { padding: 5px 8px; border-bottom: 1px solid var(--line); vertical-align: top; font-variant-numeric: tabular-nums; }
td:first-child, th:first-child { position: sticky; left: 0; background: var(--paper); z-index: 1; white-space: nowrap; }
.matrix td, .matrix th { padding: 3px; border: 0; text-align: center; }
.matrix td:first-child, .matrix th:first-child { text-align: left; padding-right: 10px; }
.cell { display: block; width: 100%; min-width: 76px; padding: 5px 4px; border: 0; border-radius: 5px; font: inherit; font-size: 13px;
        line-height: 1.2; font-weight: 600; cursor: pointer; }
.kept { background: var(--good-tint); color: var(--good); }
.broke { background: var(--bad-tint); color: var(--bad); }
.open { background: var(--open-tint); color: var(--open); }
.none { background: none; color: var(--none); font-weight: 400; }
.missing { background: var(--none-tint); color: var(--ink); font-weight: 400; border: 1px dashed var(--none); }
.cell:focus-visible, .cell.on { outline: 2px solid var(--mark); }
#said { position: sticky; bottom: 0; z-index: 2; box-shadow: 0 -6px 10px -8px var(--shade); margin: 12px 0 0; padding: 10px 12px;
        border-left: 3px solid var(--mark); background: var(--none-tint); border-radius: 4px; min-height: 48px; max-width: none; }
.legend { font-size: 14px; margin: 10px 0 0; display: grid; gap: 6px; color: var(--soft); }
.legend div { display: grid; grid-template-columns: 130px 1fr; gap: 10px; align-items: baseline; }
.legend .cell { cursor: default; text-align: center; }
details { margin-top: 12px; font-size: 14px; }
summary { cursor: pointer; font-weight: 600; }
@media (max-width: 900px) { .tiles { grid-template-columns: repeat(2, 1fr); } }
@media (max-width: 700px) {
  main { padding: 22px 14px 60px; }
  h1 { font-size: 25px; }
  .card { padding: 12px; }
  .tile b { font-size: 22px; }
  .legend div { grid-template-columns: 104px 1fr; }
  .matrix td:first-child, .matrix th:first-child { white-space: normal; width: 96px; }
}
@media print { body { background: #fff; } .card, .tile { break-inside: avoid; } .scroll { overflow: visible; } }
'''

SCRIPT = '''
const said = document.getElementById('said');
document.querySelectorAll('.matrix button').forEach(b => b.addEventListener('click', () => {
  document.querySelectorAll('.cell.on').forEach(o => o.classList.remove('on'));
  b.classList.add('on');
  said.textContent = b.dataset.said;
}));
'''
CLASSES = {'kept': 'kept', 'not promised: n': 'open', 'violated n': 'broke', '–': 'none', 'not run': 'missing'}


def escape(text):
    return html.escape(str(text))


def tiles(report):
    sums = dict(report.sums(), repeated=len(report.repeated()))
    for figure, words in (('{violations}', 'violations of what is promised in the last run of each cell; {repeated} earlier runs failed'),
                          ('{cells}', 'runs, {seconds:,.0f} seconds, {faults:,} faults, in force for {faulty:,.0f} seconds'),
                          ('{operations:,}', 'operations, {grants:,} of them grants of a lock'),
                          ('{plain:,} : {fenced}', 'updates lost without the fence, and with it')):
        yield '<div class="tile"><b>%s</b><span>%s</span></div>' % (figure.format(**sums), words.format(**sums))


def said(report, engine, fault):
    """What is shown when a cell is selected."""
    _, short, long = report.state(engine, fault)
    result = report.ours.get((engine, fault.name))
    text = '%s, %s (%s): %s. %s' % (engine, fault.name, fault.title, short, long)
    if result and 'error' not in result:
        row = dict(zip(publish.HEAD, publish.figures(result)))
        text += ' %s s, of them %s with a fault, %s operations, %s grants; longest wait after a fault %s, worst overrun %s; lost without the fence %s, ' \
            'with it %s. Seed %s, %s.' % (row['s'], row['faulty s'], row['operations'], row['grants'], row['wait after'], row['overrun'],
                                          row['unfenced lost'], row['fenced lost'], result['seed'], result['date'])
    return text


def matrix(report):
    yield '<tr><th>fault</th>%s</tr>' % ''.join('<th>%s</th>' % e for e in report.engines)
    for fault in report.faults:
        row = ''
        for engine in report.engines:
            kind, short, _ = report.state(engine, fault)
            row += '<td><button class="cell %s" data-said="%s">%s</button></td>' % (
                kind, escape(said(report, engine, fault)), escape(short))
        yield '<tr><td title="%s">%s</td>%s</tr>' % (escape(fault.title), fault.name, row)


def plain_table(head, rows):
    yield '<div class="scroll"><table><tr>%s</tr>' % ''.join('<th>%s</th>' % escape(h) for h in head)
    for row in rows:
        yield '<tr>%s</tr>' % ''.join('<td>%s</td>' % escape(c) for c in row)
    yield '</table></div>'


def parts(report):
    yield '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">'
    yield '<title>dibs: what was promised, and what was seen</title>\n<style>%s</style>\n<main>' % STYLE
    yield '<h1>What was promised, and what was seen</h1>'
    yield '<p>Each cell is a run of <code>dibs torture</code> on private servers: eight processes take locks, idempotency keys, tokens and ' \
        'counters while one fault happens again and again. Everything is recorded, and an independent checker reads the record.</p>'
    yield '<p class="soft">Written by <code>./dev torture</code> from guarantees.json: %s.</p>' % escape(report.origins())
    yield '<div class="tiles">%s</div>' % ''.join(tiles(report))
    yield '<h2>Engine and fault</h2><p>Select a cell to read what was measured.</p><div class="card"><div class="legend">'
    for word, meaning in publish.TERMS:
        yield '<div><span class="cell %s">%s</span><span>%s</span></div>' % (CLASSES[word], escape(word), escape(meaning))
    yield '</div><div class="scroll"><table class="matrix">'
    yield from matrix(report)
    yield '</table></div><p id="said">Select a cell.</p></div>'
    yield '<h2>Figures</h2><div class="legend">'
    for word, meaning in publish.COLUMNS:
        yield '<div><b>%s</b><span>%s.</span></div>' % (escape(word), escape(meaning))
    yield '</div>'
    for engine in report.engines:
        yield '<details class="card"><summary>%s</summary>' % engine
        yield from plain_table(publish.HEAD, [publish.figures(r) for r in report.ours.values() if r['engine'] == engine])
        yield '</details>'
    yield '<h2>What is left out</h2><div class="card">'
    yield from plain_table(('fault', 'engines', 'why'), report.left_out())
    yield '</div>'
    if report.repeated():
        yield '<h2>Runs that failed and were repeated</h2><p>A cell above shows its last run. Before it:</p><div class="card">'
        yield from plain_table(('engine', 'fault', 'what failed', 'cause'), report.repeated())
        yield '</div>'
    if report.peers:
        yield '<h2>Other libraries</h2><p>The same runs, locks only. They promise less, or nothing, under most of these faults. '\
            'Failed runs of theirs were not repeated, as those of dibs were: on a busy machine their deadlines and progress counts may be ' \
            'the machine\'s.</p><div class="card">'
        yield from plain_table(publish.peer_head(), publish.peer_rows(report))
        yield '</div>'
    yield '</main>\n<script>%s</script>\n</html>' % SCRIPT


def as_html(report):
    return '\n'.join(parts(report)) + '\n'
