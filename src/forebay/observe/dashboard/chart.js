// One chart: a plot by uPlot, a legend of buttons, and the same figures as a table.
//
// A chart owns its history, which is bounded in time, points and series. Nothing here is announced
// by a screen reader on its own: the plot is an image whose label has the newest values.

import { element, fillTable, setText } from "./dom.js";
import { clock, percent, WAITING, words } from "./format.js";

export const HISTORY_S = 3600;
const POINTS_MAX = 3700;
const SERIES_MAX = 12; // what is more is added up as "other"
const ORDER = [3, 4, 7, 1, 0, 2, 5, 6]; // of --series-0 to --series-7 of the style sheet
const KNOWN_COLOURS = { dram: 0, disk: 1, engine: 2, computed: 6, absent: 6, remote: 3 };
const POWERS = Array.from({ length: 60 }, (_, at) => 2 ** at); // ticks of bytes are even in binary units
const LEAST_S = 30; // a chart shows no less than that, however short its history is
const DASHES = { store: [6, 4], reused: [6, 4] };

// A colour of the style sheet as a canvas takes it, light or dark already chosen.
function variable(name) {
  const probe = element("span", { hidden: "" });
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

// Text on the canvas has the size of the page's own.
const fontSize = () => Math.round(0.8 * parseFloat(getComputedStyle(document.documentElement).fontSize));

export class Chart {
  constructor(panel) {
    this.panel = panel;
    this.times = [];
    this.history = new Map(); // series to values, one for each time
    this.hidden = new Set();
    this.plot = null;
    this.drawn = ""; // the series that the plot was made for
    this.windowS = 300;
    this.isWaiting = true; // for what can tell that there is nothing
    this.build();
  }

  build() {
    const { id, title, what } = this.panel;
    this.canvas = element("div", { class: "plot", role: "img", "aria-label": `${title}: no data yet` });
    this.empty = element("p", { class: "empty" }, this.panel.waiting ?? WAITING);
    this.legend = element("ul", { class: "legend", "aria-label": `Series of ${title}` });
    this.table = element("table");
    this.details = element("details", {},
      element("summary", {}, "Table", element("span", { class: "unseen" }, ` of ${title}`)),
      element("div", { class: "wide", role: "region", tabindex: "0", "aria-label": `Table of ${title}` }, this.table));
    this.root = element("section", { class: "card chart", id: `chart-${id}`, "aria-labelledby": `title-${id}` },
      element("h3", { id: `title-${id}` }, title),
      element("p", { class: "soft" }, what),
      element("div", { class: "frame" }, this.canvas, this.empty), this.legend, this.details);
    this.details.addEventListener("toggle", () => this.showTable());
    new ResizeObserver(() => this.resize()).observe(this.canvas);
  }

  // The newest values: a series to a number, or to null for none.
  add(time, values) {
    const kept = bounded(values, this.history);
    this.times.push(time);
    for (const name of kept.keys()) {
      if (!this.history.has(name)) this.history.set(name, new Array(this.times.length - 1).fill(null));
    }
    for (const [name, list] of this.history) list.push(kept.get(name) ?? null);
    let old = 0;
    while (this.times.length - old > POINTS_MAX || this.times[old] < time - HISTORY_S) old += 1;
    if (old) {
      this.times.splice(0, old);
      for (const list of this.history.values()) list.splice(0, old);
    }
  }

  // A curve over something else than time takes the place of the one before.
  replace(xs, series) {
    this.times = xs;
    this.history = series;
  }

  // No line is drawn from one pool to the next.
  interrupt(time) {
    if (!this.panel.overTime || !this.times.length) return;
    this.times.push(time);
    for (const list of this.history.values()) list.push(null);
  }

  get newest() {
    return new Map([...this.history].map(([name, list]) => [name, list.at(-1) ?? null]));
  }

  // How a series' values are written: one of a panel may be a share, on an axis of its own.
  write(name, value) {
    return (name === this.panel.share ? percent : this.panel.format)(value);
  }

  names() {
    return [...this.history.keys()];
  }

  show() {
    const hasData = [...this.history.values()].some((list) => list.some((value) => value !== null));
    this.empty.hidden = hasData;
    setText(this.empty, this.isWaiting ? this.panel.waiting ?? WAITING : this.panel.empty ?? "Nothing yet.");
    this.canvas.classList.toggle("blank", !hasData);
    const names = this.names().join("\n");
    if (hasData) {
      if (this.plot === null || names !== this.drawn) this.make();
      else this.plot.setData(this.data(), false);
      this.rescale();
    }
    if (names !== this.listed) this.list();
    this.showValues();
    this.showTable();
  }

  data() {
    return [this.times, ...this.history.values()];
  }

  rescale() {
    if (!this.panel.overTime) {
      this.plot.setScale("x", { min: this.times[0], max: this.times.at(-1) });
      return;
    }
    const end = this.times.at(-1);
    const begin = Math.min(this.times[0], end - LEAST_S);
    this.plot.setScale("x", { min: Math.max(begin, end - this.windowS), max: end });
  }

  // Drawn anew: with other series, or in other colours.
  make() {
    this.plot?.destroy();
    this.drawn = this.names().join("\n");
    const { width, height } = this.canvas.getBoundingClientRect();
    const size = { width: Math.max(width, 50), height: Math.max(height, 50) };
    this.plot = new uPlot({ ...size, ...this.options() }, this.data(), this.canvas);
  }

  options() {
    const { overTime, format, upTo, isBytes, ticksX } = this.panel;
    const size = fontSize();
    const lines = { stroke: variable("--soft"), font: `${size}px system-ui, sans-serif`, grid: { stroke: variable("--rule"), width: 1 }, ticks: { show: false } };
    const x = overTime
      ? { ...lines, size: 2.2 * size, gap: 8, space: 6 * size, values: (_, ticks) => ticks.map((tick) => clock(1000 * tick)) }
      : { ...lines, size: 2.2 * size, gap: 8, space: 4 * size, values: (_, ticks) => ticks.map((tick) => this.panel.formatX(tick)),
        filter: (_, ticks) => ticks, splits: (_, __, low, high) => ticksX.filter((tick) => tick >= low && tick <= high) };
    const y = { ...lines, size: 5.5 * size, ...(isBytes ? { incrs: POWERS } : {}), values: (_, ticks) => ticks.map((tick) => format(tick)) };
    const share = { ...lines, size: 4 * size, side: 1, scale: "share", grid: { show: false }, values: (_, ticks) => ticks.map((tick) => percent(tick)) };
    const range = (_, low, high) => [0, upTo ?? ((high ?? 0) * 1.1 || 1)];
    return {
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 }, ...(overTime ? { sync: { key: "time" } } : {}) },
      scales: { x: overTime ? { time: true } : { time: false, distr: 3 }, y: { range }, share: { range: [0, 1] } },
      axes: this.panel.share ? [x, y, share] : [x, y],
      series: [{}, ...this.names().map((name, at) => this.line(name, at))],
      hooks: { setCursor: [() => this.showValues()] },
    };
  }

  line(name, at) {
    const [dash] = name.split(" ").map((word) => DASHES[word]).filter(Boolean);
    return {
      label: name, scale: name === this.panel.share ? "share" : "y", stroke: variable(`--series-${this.colour(name, at)}`), width: 2, dash, spanGaps: !this.panel.overTime,
      show: !this.hidden.has(name), points: { show: false },
    };
  }

  // A tier has the same colour in every chart, unless something else is told apart.
  colour(name, at) {
    const known = name.split(" ").find((word) => word in KNOWN_COLOURS);
    return known === undefined || this.panel.isByOrder ? ORDER[at % ORDER.length] : KNOWN_COLOURS[known];
  }

  resize() {
    const { width, height } = this.canvas.getBoundingClientRect();
    if (this.plot && width > 0 && height > 0) this.plot.setSize({ width, height });
  }

  list() {
    this.listed = this.names().join("\n");
    this.values = new Map();
    const items = this.names().map((name, at) => {
      const value = element("span", { class: "value" });
      this.values.set(name, value);
      const dashed = name.split(" ").some((word) => DASHES[word]);
      const key = element("span", { class: `key colour-${this.colour(name, at)}${dashed ? " dashed" : ""}`, "aria-hidden": "true" });
      const button = element("button", { type: "button", "aria-pressed": String(!this.hidden.has(name)) }, key, `${words(name)} `, value);
      button.addEventListener("click", () => this.toggle(name, button));
      return element("li", {}, button);
    });
    this.legend.replaceChildren(...items);
  }

  toggle(name, button) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    const isShown = !this.hidden.has(name);
    button.setAttribute("aria-pressed", String(isShown));
    this.plot?.setSeries(this.names().indexOf(name) + 1, { show: isShown });
  }

  // The values under the pointer, or the newest; a curve that is not over time has its own summary.
  showValues() {
    const at = this.plot?.cursor.idx ?? null;
    const read = this.panel.summary ?? ((_, list) => list.at(-1));
    const said = [];
    for (const [name, list] of this.history) {
      const value = at === null ? read(this.times, list) : list[at];
      const text = at === null && this.panel.formatSummary ? this.panel.formatSummary(value) : this.write(name, value);
      const shown = this.values?.get(name);
      if (shown && shown.textContent !== text) shown.textContent = text;
      if (at === null) said.push(`${words(name)} ${text}`);
    }
    if (said.length) this.canvas.setAttribute("aria-label", `${this.panel.title}, now: ${said.join(", ")}`);
  }

  showTable() {
    if (!this.details.open) return;
    const { format, overTime } = this.panel;
    if (!overTime) {
      const rows = this.times.map((x, at) => [this.panel.formatX(x), ...[...this.history.values()].map((list) => format(list[at]))]);
      fillTable(this.table, [this.panel.nameX, ...this.names().map(words)], rows);
      return;
    }
    const from = this.times.findIndex((time) => time >= this.times.at(-1) - this.windowS);
    const rows = [...this.history].map(([name, list]) => {
      const known = list.slice(from).filter((value) => value !== null);
      const mean = known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
      const ends = known.length ? [Math.min(...known), Math.max(...known)] : [null, null];
      return [words(name), ...[list.at(-1), mean, ...ends].map((value) => this.write(name, value))];
    });
    fillTable(this.table, ["series", "now", "mean", "least", "most"], rows);
  }
}

// At most SERIES_MAX series: those that are known already, then the first ones, then one for the rest.
function bounded(values, known) {
  const kept = new Map();
  let room = SERIES_MAX - known.size;
  for (const [name, value] of values) {
    if (known.has(name)) {
      kept.set(name, value);
    } else if (room > 1) {
      kept.set(name, value);
      room -= 1;
    } else if (value !== null) {
      kept.set("other", (kept.get("other") ?? 0) + value);
    }
  }
  return kept;
}
