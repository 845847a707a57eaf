"""The page's style: light and dark as the reader has it, black on white on paper."""

from typing import Final

STYLE: Final = """
:root{color-scheme:light dark;--ground:#fbfbfa;--card:#fff;--ink:#1b1f24;--soft:#5b6470;
--rule:#e1e4e8;--off:#7a8594;--on:#0b7285;--other:#b7791f;--sla:#c92a2a;--good:#2b8a3e}
@media (prefers-color-scheme:dark){:root{--ground:#14171a;--card:#1c2126;--ink:#e8eaed;
--soft:#9aa4b0;--rule:#2f363d;--off:#8b96a5;--on:#3bc9db;--other:#e9b44c;--sla:#ff8787;
--good:#69db7c}}
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
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(400px,1fr));gap:16px}
.card{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:16px 18px}
.card b{display:block;font-size:34px;line-height:1.15;font-weight:650;color:var(--on);
font-variant-numeric:tabular-nums}
.key{display:inline-block;width:18px;height:4px;border-radius:2px;margin:0 6px 4px 0;
vertical-align:middle}
.key.off{background:var(--off)}.key.on{background:var(--on)}.key.other{background:var(--other)}
.keys span{margin-right:18px;white-space:nowrap}
svg{width:100%;height:auto;display:block}
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}
svg text.axis{fill:var(--ink)}svg text.sla{fill:var(--sla)}
svg .grid{stroke:var(--rule)}
svg .sla{stroke-dasharray:6 4;stroke-width:1.5}svg line.sla{stroke:var(--sla)}
svg .curve{fill:none;stroke-width:2.5;stroke-linejoin:round}
svg .curve.off{stroke:var(--off)}svg .curve.on{stroke:var(--on)}
svg .curve.other{stroke:var(--other)}
svg .dot.off{fill:var(--off)}svg .dot.on{fill:var(--on)}svg .dot.other{fill:var(--other)}
svg .ring{fill:none;stroke-width:2}
svg .ring.off{stroke:var(--off)}svg .ring.on{stroke:var(--on)}svg .ring.other{stroke:var(--other)}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;background:var(--card)}
th,td{padding:6px 8px;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th{font-weight:600;color:var(--soft);white-space:normal;vertical-align:bottom}
th.name,td.name{text-align:left;white-space:normal;min-width:8em}
td.gain{color:var(--good);font-weight:600}td.loss{color:var(--sla);font-weight:600}
td.beyond{color:var(--sla)}
td.point{font-weight:700;color:var(--on)}
pre{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:12px;
white-space:pre-wrap;overflow-wrap:anywhere;font:12.5px/1.5 ui-monospace,Menlo,Consolas,monospace}
@media print{:root{--ground:#fff;--card:#fff;--ink:#000;--soft:#444;--rule:#ccc;--off:#777;
--on:#0b7285;--other:#b7791f;--sla:#c92a2a;--good:#2b8a3e}
main{max-width:none;padding:0}body{font-size:11px}
.charts{grid-template-columns:1fr 1fr}.cards{grid-template-columns:repeat(3,1fr)}
th,td{padding:3px 5px}.wide{overflow:visible}
.card,tr,pre,svg{break-inside:avoid}h2{break-after:avoid;margin-top:20px}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
