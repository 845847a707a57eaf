// Cards and tables: what the newest snapshot and the ring of requests say, as text.

import { byId, element, fillTable, setText } from "./dom.js";
import { byteRate, bytes, clock, count, milliseconds, modelName, percent, plain, seconds, words } from "./format.js";

const DAY_S = 86400;
const YEAR_S = 365.25 * DAY_S;
const FULL = 0.95; // of a cap, as for the terminal: what is left is less than an arena or a region

// Of the prompt tokens since the pool began, the share that nobody had to compute.
export function hitRate(snapshot) {
  const tokens = snapshot.by("request_tokens", ["source"]);
  const all = [...tokens.values()].reduce((sum, value) => sum + value, 0);
  return all ? 1 - (tokens.get("computed") ?? 0) / all : null;
}

export function poolShare(snapshot) {
  const tokens = snapshot.by("request_tokens", ["source"]);
  const all = [...tokens.values()].reduce((sum, value) => sum + value, 0);
  const elsewhere = (tokens.get("computed") ?? 0) + (tokens.get("engine") ?? 0);
  return all ? (all - elsewhere) / all : null;
}

// The figures at the top: each has an id in the page.
export function showCards(snapshot) {
  const figures = {
    "hit-rate": percent(hitRate(snapshot)),
    "pool-share": percent(poolShare(snapshot)),
    "saved-tokens": count(snapshot.sum("saved_tokens") ?? 0),
    "saved-seconds": seconds(snapshot.sum("saved_gpu_seconds_estimate") ?? 0),
    "requests": count(snapshot.sum("requests") ?? 0),
    "loaded-bytes": bytes(snapshot.sum("moved_bytes", { tier: "dram", direction: "load" })),
    "stored-bytes": bytes(snapshot.sum("moved_bytes", { tier: "dram", direction: "store" })),
    "errors": count(snapshot.sum("errors") ?? 0),
  };
  for (const [name, text] of Object.entries(figures)) setText(byId(`card-${name}`), text);
}

function gauge(share, label) {
  const meter = element("meter", { min: "0", max: "1", value: String(Math.min(share, 1)), "aria-label": label });
  return element("span", { class: "gauge" }, meter, ` ${percent(share)}`);
}

const stateOf = (volume) => element("span", { class: volume.is_on ? "good" : "bad" }, volume.is_on ? "on" : "off");

export function showTiers({ json }) {
  const rows = [];
  for (const tier of json.tiers ?? []) {
    const share = tier.cap_bytes ? tier.used_bytes / tier.cap_bytes : 0;
    rows.push([plain(tier.name), gauge(share, `${plain(tier.name)} used`), bytes(tier.used_bytes), bytes(tier.cap_bytes),
      count(tier.chunks), "", "", "", ""]);
    for (const [at, volume] of (tier.volumes ?? []).entries()) {
      rows.push([`${plain(tier.name)} directory ${at}: ${plain(volume.path)}`, "", "", "", "", stateOf(volume), count(volume.errors),
        bytes(volume.read_bytes), bytes(volume.written_bytes)]);
    }
  }
  fillTable(byId("tiers"), ["tier", "full", "used", "cap", "chunks", "state", "errors", "read", "written"], rows);
}

// What stands in the place of an empty table.
function showEmpty(id, rows, text) {
  byId(id).hidden = rows.length > 0;
  setText(byId(id), text);
}

const SHARING_CLASS = { sharing: "good", declined: "bad", weights_unknown: "bad" };

export function showEngines({ json }) {
  const engines = json.engines ?? [];
  showEmpty("no-engines", engines, "No engine has joined.");
  const rows = engines.map((each) => [plain(each.id), modelName(each.model), plain(each.engine),
    element("span", { class: SHARING_CLASS[each.sharing] ?? "" }, words(each.sharing)),
    plain(each.why, 400), count(each.processes), seconds(each.joined_s)]);
  if (json.engines_more) rows.push([`and ${count(json.engines_more)} more`, "", "", "", "", "", ""]);
  fillTable(byId("engines"), ["engine", "model", "release", "sharing", "why", "processes", "joined for"], rows);
}

const across = (amounts) => Object.values(amounts ?? {}).reduce((sum, value) => sum + value, 0);

export function showNamespaces({ json }) {
  const spaces = json.namespaces ?? [];
  const tiers = (json.tiers ?? []).map((tier) => tier.name);
  showEmpty("no-namespaces", spaces, "Nothing is stored.");
  const rows = spaces.map((each) => [plain(each.namespace), modelName(each.model), bytes(across(each.bytes)),
    ...tiers.map((tier) => `${bytes(each.bytes?.[tier] ?? 0)} in ${count(each.chunks?.[tier] ?? 0)}`)]);
  if (json.namespaces_more) rows.push([`and ${count(json.namespaces_more)} more`, "", "", ...tiers.map(() => "")]);
  fillTable(byId("namespaces"), ["namespace", "model", "bytes", ...tiers.map((tier) => `${plain(tier)}: bytes in chunks`)], rows);
}

// What runs out, soonest first: [seconds until then, sentence].
export function limitsOf(recent) {
  const { newest } = recent;
  const then = recent.back(60);
  const span = then ? newest.time - then.time : 0;
  const rise = (name, wanted) => (then ? Math.max(0, ((newest.sum(name, wanted) ?? 0) - (then.sum(name, wanted) ?? 0)) / span) : 0);
  const found = [];
  for (const tier of newest.json.tiers ?? []) {
    found.push(tierLimit(tier, rise("used_bytes", { tier: tier.name }), cameIn(newest, tier, rise)));
    for (const [at, volume] of (tier.volumes ?? []).entries()) {
      if (!volume.is_on) found.push([0, `${plain(tier.name)} directory ${at} is switched off: its error budget is spent.`]);
    }
  }
  for (const [{ tier, volume }, isWell] of newest.rows("healthy")) {
    if (!isWell) found.push([0, `${plain(tier)} ${plain(volume)} failed the last check of health: see /healthz.`]);
  }
  const written = rise("written_bytes", {});
  const budget = newest.sum("write_budget_bytes");
  if (budget) {
    const used = newest.sum("write_budget_used_bytes") ?? 0;
    const left = written > 0 ? Math.max(0, budget - used) / written : Infinity;
    const when = used >= budget ? "spent: nothing is written to drives until some of it is a day old"
      : left < DAY_S ? `spent in ${seconds(left)} at this rate` : "not spent at this rate";
    found.push([used >= budget ? 0 : left, `Write budget of 24 hours: ${bytes(used)} of ${bytes(budget)} (${percent(used / budget)}), ${when}.`]);
  }
  const life = newest.sum("rated_life_bytes");
  if (life) {
    const total = newest.sum("life_written_bytes") ?? 0;
    const pace = newest.json.uptime_s > 0 ? (newest.sum("written_bytes") ?? 0) / newest.json.uptime_s : 0;
    const left = pace > 0 ? Math.max(0, life - total) / pace : Infinity;
    found.push([left, `Rated life of the drives: ${percent(total / life)} written; the rest lasts ${years(left)} at the pace since this pool began.`]);
  }
  return found.sort(([one], [other]) => one - other);
}

const years = (value) => (Number.isFinite(value) ? (value > YEAR_S ? `${count(Math.round(10 * (value / YEAR_S)) / 10)} years` : seconds(value)) : "unlimited");

// Bytes that come into a tier, a second: what lower tiers load comes into the first.
function cameIn({ json }, tier, rise) {
  const lower = tier === json.tiers[0] ? json.tiers.slice(1) : [];
  const loaded = lower.map((each) => rise("moved_bytes", { tier: each.name, direction: "load" }));
  return loaded.reduce((sum, value) => sum + value, rise("moved_bytes", { tier: tier.name, direction: "store" }));
}

// A full tier stands first, in the words of `forebay stats`.
function tierLimit(tier, rise, came) {
  const share = tier.cap_bytes ? tier.used_bytes / tier.cap_bytes : 0;
  const name = plain(tier.name);
  if (share >= FULL) {
    const stays = came > 0 ? `; with ${byteRate(came)} coming in, a chunk stays ${seconds(tier.used_bytes / came)}` : "";
    return [0, `${name} is full: older chunks make room for new ones${stays}.`];
  }
  const left = rise > 0 ? (tier.cap_bytes - tier.used_bytes) / rise : Infinity;
  const when = rise > 0 ? `full in ${seconds(left)} at this rate` : "not growing";
  return [left, `${name} is ${percent(share)} full (${bytes(tier.used_bytes)} of ${bytes(tier.cap_bytes)}), ${when}.`];
}

export function showLimits(recent) {
  const items = limitsOf(recent).map(([left, text]) => element("li", left === 0 ? { class: "warn" } : {}, text));
  const list = byId("limits-list");
  if (list.textContent !== items.map((item) => item.textContent).join("")) list.replaceChildren(...items);
}

const byTier = (amounts) => Object.entries(amounts ?? {}).filter(([, tokens]) => tokens > 0)
  .map(([tier, tokens]) => `${plain(tier)} ${count(tokens)}`).join(", ") || "0";

const REQUEST_COLUMNS = ["time", "request", "decision", "why", "prompt tokens", "engine's own", "found", "loaded", "computed", "lookup",
  "wait", "load", "saved (estimate)", "preempted", "model"];

const rowOf = (each) => [clock(1000 * each.time_s), plain(each.request, 64), words(each.decision),
  plain([each.what, each.detail, each.advice].filter(Boolean).join(" "), 600), count(each.prompt_tokens), count(each.engine_tokens),
  byTier(each.found_tokens), byTier(each.loaded_tokens), count(each.computed_tokens), milliseconds(each.lookup_ms),
  milliseconds(each.wait_ms), milliseconds(each.load_ms), milliseconds(each.saved_gpu_ms_estimate), each.was_preempted ? "yes" : "no",
  modelName(each.model)];

// The newest requests first, those that the two fields of the page let through.
export function showRequests(ring, isAnswered = true) {
  const text = byId("request-filter").value.trim().toLowerCase();
  const decision = byId("decision-filter").value;
  const most = Number(byId("request-count").value);
  const fits = ring.filter((each) => (!decision || each.decision === decision)
    && (!text || `${each.request} ${each.model} ${each.namespace}`.toLowerCase().includes(text)));
  if (isAnswered) showEmpty("no-requests", ring, "No engine has reported a request.");
  setText(byId("requests-shown"), ring.length ? `${count(Math.min(most, fits.length))} of ${count(ring.length)} that are kept.` : "");
  fillTable(byId("requests"), REQUEST_COLUMNS, fits.slice(-most).reverse().map(rowOf));
  showDecisions(ring);
}

// Whoever looks may not see them; the pool says in a sentence what to do.
export function showRefusal(sentence) {
  showEmpty("no-requests", [], `${sentence[0].toUpperCase()}${sentence.slice(1)}.`);
}

function showDecisions(ring) {
  const known = [...new Set(ring.map((each) => each.decision))].sort();
  const field = byId("decision-filter");
  const shown = [...field.options].slice(1).map((option) => option.value);
  if (known.join("\n") === shown.join("\n")) return;
  const chosen = field.value;
  field.replaceChildren(field.options[0], ...known.map((each) => element("option", { value: each }, words(each))));
  field.value = known.includes(chosen) ? chosen : "";
}

// Every value of every metric under its full name, as /metrics has it.
export function showMetrics({ json }) {
  if (!byId("metrics-details").open) return;
  const rows = [];
  for (const [name, metric] of Object.entries(json.metrics ?? {})) {
    const suffix = metric.kind === "counter" ? "_total" : "";
    for (const [labels, value] of metric.values) {
      const named = Object.entries(labels).map(([key, text]) => `${key}="${plain(text)}"`).join(",");
      const full = (ending) => `forebay_${name}${ending}${named ? `{${named}}` : ""}`;
      if (typeof value === "number") {
        rows.push([full(suffix), metric.kind, metric.unit, String(value)]);
      } else {
        rows.push([full("_count"), metric.kind, "", String(value.count)], [full("_sum"), metric.kind, metric.unit, String(value.sum)]);
      }
    }
  }
  fillTable(byId("metrics"), ["metric", "kind", "unit", "value"], rows);
}
