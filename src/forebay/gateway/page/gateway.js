// Asks the gateway for its state and its metrics, again and again, and shows them.
//
// Tables have the columns that the gateway's answer has: what it tells of later is shown at once.

import { byId, element, fillTable, setText } from "./dom.js";
import { count, plain, seconds, words } from "./format.js";
import { PANELS } from "./gateway-panels.js";
import { ask, begin, showCharts } from "./live.js";
import { Recent, Snapshot } from "./snapshot.js";

const LETTERS_MAX = 400; // of a cell
const CONDITION_CLASS = { up: "good", down: "bad", "other model": "bad" };

const recent = new Recent();

// Any value of the answer as a reader wants it.
function text(value) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return count(value);
  if (Array.isArray(value)) return value.map(text).join(", ") || "–";
  if (typeof value === "object") return Object.entries(value).map(([name, each]) => `${words(name)} ${text(each)}`).join(", ") || "–";
  return plain(value, LETTERS_MAX);
}

function cell(name, value) {
  if (name !== "condition") return text(value);
  return element("span", { class: CONDITION_CLASS[value] ?? "" }, text(value));
}

// One row for each object; a column for each name that any of them has.
export function showRows(id, rows) {
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  fillTable(byId(id), columns.map(words), rows.map((row) => columns.map((name) => cell(name, row[name]))));
}

export function show(stats) {
  const snapshot = new Snapshot(stats, Date.now() / 1000);
  showCharts(recent, snapshot);
  setText(byId("gateway"), `Process ${stats.pid}, Forebay ${plain(stats.version)}, up ${seconds(stats.uptime_s)}`);
  showRows("gateway-engines", stats.engines);
  showRows("gateway-models", Object.entries(stats.models).map(([name, model]) => ({ name, ...model })));
  showRows("gateway-keys", stats.keys);
}

begin(PANELS, () => ask("stats.json"), show);
