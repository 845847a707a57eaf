// A page that asks its server again and again and shows the answers: charts, controls, colours.
//
// Only the server that sent this page is asked. One question is under way at a time; one that is
// not answered within ANSWER_MS is given up.

import { Chart } from "./chart.js";
import { byId, setText } from "./dom.js";
import { clock } from "./format.js";

const ANSWER_MS = 10_000;
const FORBIDDEN = 403; // some of it may be an operator's alone to see
const THEME = "forebay-theme";

export const charts = [];
let askAll = null; // fetches what the page shows; throws where the server does not answer
let showAll = null; // shows it
let timer = null;
let isAsking = false;
let lostSince = null;

// A reader's choice of colours; a browser that keeps nothing is as good.
function remembered(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch {
    return value ?? null;
  }
}

// Where a server wants a token, the browser itself has asked for it with the page, and sends it here.
export async function ask(path) {
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
    answers = await askAll();
  } catch {
    lostSince ??= Date.now();
    if (!isPaused()) showState("lost", `No answer since ${clock(lostSince)}`);
  }
  isAsking = false;
  if (answers === null) return;
  showAll(answers);
  lostSince = null;
  showState(isPaused() ? "paused" : "live", isPaused() ? "Paused" : "Live");
}

// The charts of a snapshot; whether it is another server's than the one before.
export function showCharts(recent, snapshot) {
  const isOther = recent.add(snapshot);
  if (isOther) {
    for (const chart of charts) chart.interrupt(snapshot.time - 0.001);
  }
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
  document.documentElement.dataset.uptime = String(snapshot.json.uptime_s);
  return isOther;
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

// Show a page with these panels, by the name of the place that they stand in.
export function begin(panels, asks, shows) {
  [askAll, showAll] = [asks, shows];
  for (const place of document.querySelectorAll("[data-panels]")) {
    for (const panel of panels[place.dataset.panels]) {
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
  tick();
}
