"""A page in one HTML file: opens offline, follows light and dark, prints well, has no script.

Text that is given to these functions is escaped; `body` and what they return is HTML.
"""

import html
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from forebay.report.charts import Chart, svg

Cell = str | tuple[str, str]  # text, or text and its class in the style below
STYLE: Final = """
:root{color-scheme:light dark;--ground:#fbfbfa;--card:#fff;--ink:#1b1f24;--soft:#5b6470;
--rule:#e1e4e8;--off:#7a8594;--on:#0b7285;--other:#b7791f;--fourth:#7048a8;--fifth:#2b8a3e;
--sixth:#c2255c;--sla:#c92a2a;--good:#2b8a3e}
@media screen and (prefers-color-scheme:dark){:root{--ground:#14171a;--card:#1c2126;--ink:#e8eaed;
--soft:#9aa4b0;--rule:#2f363d;--off:#8b96a5;--on:#3bc9db;--other:#e9b44c;--fourth:#b197fc;
--fifth:#8ce99a;--sixth:#faa2c1;--sla:#ff8787;--good:#69db7c}}
.off{--line:var(--off)}.on{--line:var(--on)}.other{--line:var(--other)}
.fourth{--line:var(--fourth)}.fifth{--line:var(--fifth)}.sixth{--line:var(--sixth)}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:32px 24px 64px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px}
h2{font-size:18px;margin:40px 0 12px}
h3{font-size:15px;margin:0 0 2px}
p{margin:6px 0;max-width:78ch}
.soft{color:var(--soft)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(230px,1fr));gap:16px;margin:24px 0}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(400px,1fr));gap:16px}
.card{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:16px 18px}
.card b{display:block;font-size:34px;line-height:1.15;font-weight:650;
font-variant-numeric:tabular-nums}
.card b.gain{color:var(--good)}.card b.loss{color:var(--sla)}
.key{display:inline-block;width:18px;height:4px;border-radius:2px;margin:0 6px 4px 0;
vertical-align:middle;background:var(--line)}
.keys span{margin-right:18px;white-space:nowrap}
svg{width:100%;height:auto;display:block}
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}
svg text.axis{fill:var(--ink)}svg text.sla{fill:var(--sla)}
svg .grid{stroke:var(--rule)}
svg .sla{stroke-dasharray:6 4;stroke-width:1.5}svg line.sla{stroke:var(--sla)}
svg .curve{fill:none;stroke-width:2.5;stroke-linejoin:round;stroke:var(--line)}
svg .dashed.curve{stroke-dasharray:7 5}
.key.dashed{background:repeating-linear-gradient(90deg,var(--line) 0 5px,transparent 5px 8px)}
svg .span{stroke:var(--line);stroke-width:1.5}
svg .dot{fill:var(--line)}svg .ring{fill:none;stroke-width:2;stroke:var(--line)}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;background:var(--card)}
th,td{padding:6px 8px;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th{font-weight:600;color:var(--soft);white-space:normal;vertical-align:bottom}
th.name,td.name{text-align:left;white-space:normal;min-width:8em}
td.gain{color:var(--good);font-weight:600}td.loss{color:var(--sla);font-weight:600}
td.beyond{color:var(--sla)}
td.point{font-weight:700}
pre{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:12px;
white-space:pre-wrap;overflow-wrap:anywhere;font:12.5px/1.5 ui-monospace,Menlo,Consolas,monospace}
@media print{:root{--ground:#fff;--ink:#000;--soft:#444}
main{max-width:none;padding:0}body{font-size:11px}
.charts{grid-template-columns:1fr 1fr}.cards{grid-template-columns:repeat(3,1fr)}
th,td{padding:3px 5px}.wide{overflow:visible}
.card,tr,pre,svg{break-inside:avoid}h2{break-after:avoid;margin-top:20px}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


class Table(NamedTuple):
    """Text in rows."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    names: Sequence[int] = ()  # columns with words, not figures
    groups: Sequence[tuple[str, int]] = ()  # names above the head, each for so many columns


def document(title: str, subtitle: str, body: Iterable[str]) -> str:
    parts = [f"<h1>{html.escape(title)}</h1>", f'<p class="soft">{html.escape(subtitle)}</p>']
    content = "\n".join(part for part in [*parts, *body] if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title>"
        # Else a browser would ask the network, or the disk, for an icon.
        '<link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head>\n<body><main>\n{content}\n</main></body></html>\n"
    )


def figure(chart: Chart) -> str:
    """A chart under its title; empty if it has no points."""
    drawn = svg(chart)
    if not drawn:
        return ""
    return (
        f'<figure class="card" style="margin:0"><h3>{html.escape(chart.title)}</h3>'
        f'<div class="soft">{html.escape(chart.unit)}</div>{drawn}</figure>'
    )


def legend(names: Iterable[tuple[str, str]], remark: str = "") -> str:
    """A legend of names with their colours."""
    keys = "".join(
        f'<span><i class="key {colour}"></i>{html.escape(name)}</span>' for colour, name in names
    )
    return f'<p class="keys">{keys}<span class="soft">{html.escape(remark)}</span></p>'


def paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def table(shown: Table) -> str:
    """A table under its head, and under its groups if it has any."""
    groups = "".join(
        f'<th colspan="{span}">{html.escape(name)}</th>' for name, span in shown.groups
    )
    above = f"<tr>{groups}</tr>" if groups else ""
    if any(shown.head):
        above += _row("th", shown.head, shown.names)
    above = f"<thead>{above}</thead>" if above else ""
    body = "".join(_row("td", row, shown.names) for row in shown.rows)
    return f'<div class="wide"><table>{above}<tbody>{body}</tbody></table></div>'


def _row(tag: str, cells: Sequence[Cell], names: Sequence[int]) -> str:
    inner = ""
    for at, cell in enumerate(cells):
        text, kind = (cell, "") if isinstance(cell, str) else cell
        kind = "name" if at in names else kind
        said = f' class="{kind}"' if kind else ""
        inner += f"<{tag}{said}>{html.escape(text)}</{tag}>"
    return f"<tr>{inner}</tr>"
