// Asks the pool for its snapshot and its newest requests, again and again, and shows them.
//
// Only /stats.json and /requests.json of the server that sent this page are asked. One question is
// under way at a time; one that is not answered within ANSWER_MS is given up.

import { Chart } from "./chart.js";
import { byId, setText } from "./dom.js";
import { clock, plain, seconds } from "./format.js";
import { PANELS } from "./panels.js";
import { Recent, Snapshot } from "./snapshot.js";
import { showCards, showEngines, showLimits, showMetrics, showNamespaces, showRefusal, showRequests, showTiers } from "./tables.js";

const ANSWER_MS = 10_000;
const FORBIDDEN = 403; // recent requests may be an operator's alone to see
const REQUESTS_MAX = 1000; // of the ring: what a pool keeps
const THEME = "forebay-theme";

const charts = [];
const recent = new Recent();
let ring = [];
let lastNumber = 0;
let timer = null;
let isAsking = false;
let lostSince = null;
let refusal = null; // what was said to who may not see requests

// A reader's choice of colours; a browser that keeps nothing is as good.
function remembered(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch {
    return value ?? null;
  }
}

// Where a pool wants a token, the browser itself has asked for it with the page, and sends it here.
async function ask(path) {
  const url = new URL(path, location.origin + location.pathname); // without what a user wrote before an @
  const answer = await fetch(url, { cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(ANSWER_MS) });
  if (answer.status === FORBIDDEN) return { refused: await answer.text() };
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

async function refresh() {
  if (isAsking) return;
  isAsking = true;
  let answers = null;
  try {
    const requests = () => ask(`requests.json?after=${lastNumber}&last=${REQUESTS_MAX}`);
    answers = [await ask("stats.json"), refusal ?? await requests()];
  } catch {
    lostSince ??= Date.now();
    if (!isPaused()) showState("lost", `No answer since ${clock(lostSince)}`);
  }
  isAsking = false;
  if (answers === null) return;
  const [stats, requests] = answers;
  take(new Snapshot(stats, Date.now() / 1000));
  takeRequests(requests);
  lostSince = null;
  showState(isPaused() ? "paused" : "live", isPaused() ? "Paused" : "Live");
}

function take(snapshot) {
  if (recent.add(snapshot)) {
    ring = [];
    lastNumber = 0;
    for (const chart of charts) chart.interrupt(snapshot.time - 0.001);
  }
  const { json } = snapshot;
  setText(byId("pool"), `Process ${json.pid}, Forebay ${plain(json.forebay)}, up ${seconds(json.uptime_s)}, ${plain(json.socket)}`);
  showCards(snapshot);
  showLimits(recent);
  showTiers(snapshot);
  showEngines(snapshot);
  showNamespaces(snapshot);
  showMetrics(snapshot);
  for (const chart of charts) {
    chart.isWaiting = chart.panel.overTime && recent.back(0) === null; // a rate needs two snapshots
    if (chart.panel.readCurves) {
      const { xs, series } = chart.panel.readCurves(recent);
      chart.replace(xs, series);
    } else {
      chart.add(snapshot.time, chart.panel.read(recent));
    }
    chart.show();
  }
  // For whoever watches the page, tests among them: which snapshot is on it.
  document.documentElement.dataset.uptime = String(json.uptime_s);
}

function takeRequests(fresh) {
  if (fresh.refused) {
    refusal = fresh; // it is not asked again until the page is opened anew
    showRefusal(plain(fresh.refused.trim(), 400));
    return;
  }
  if (fresh.length) {
    ring = [...ring, ...fresh].slice(-REQUESTS_MAX);
    lastNumber = ring.at(-1).number;
  }
  showRequests(ring);
}

// The state is read out when it changes, and only then.
function showState(state, text) {
  const shown = byId("state");
  shown.dataset.state = state;
  setText(shown, text);
}

const isPaused = () => byId("pause").getAttribute("aria-pressed") === "true";

async function tick() {
  clearTimeout(timer);
  if (!isPaused()) {
    await refresh();
    clearTimeout(timer);
    timer = setTimeout(tick, 1000 * Number(byId("interval").value));
  }
}

function pause() {
  const paused = !isPaused();
  byId("pause").setAttribute("aria-pressed", String(paused));
  if (paused) showState("paused", "Paused");
  tick();
}

function redraw() {
  for (const chart of charts) {
    if (chart.plot) {
      chart.make();
      chart.rescale();
    }
  }
}

function setTheme(value) {
  if (value) document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
  redraw();
}

function begin() {
  for (const place of document.querySelectorAll("[data-panels]")) {
    for (const panel of PANELS[place.dataset.panels]) {
      const chart = new Chart(panel);
      charts.push(chart);
      place.append(chart.root);
    }
  }
  byId("pause").addEventListener("click", pause);
  byId("interval").addEventListener("change", tick);
  byId("window").addEventListener("change", (event) => {
    for (const chart of charts) {
      chart.windowS = Number(event.target.value);
      chart.show();
    }
  });
  const theme = byId("theme");
  theme.value = remembered(THEME) ?? "";
  theme.addEventListener("change", () => setTheme(remembered(THEME, theme.value)));
  setTheme(theme.value);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  for (const id of ["request-filter", "decision-filter", "request-count"]) {
    byId(id).addEventListener("input", () => showRequests(ring, recent.newest !== undefined));
  }
  byId("metrics-details").addEventListener("toggle", () => recent.newest && showMetrics(recent.newest));
  tick();
}

begin();
