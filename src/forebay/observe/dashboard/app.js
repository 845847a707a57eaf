// Asks the pool for its snapshot and its newest requests, again and again, and shows them.
//
// Only /stats.json and /requests.json of the server that sent this page are asked.

import { byId, setText } from "./dom.js";
import { plain, seconds } from "./format.js";
import { ask, begin, showCharts } from "./live.js";
import { PANELS } from "./panels.js";
import { Recent, Snapshot } from "./snapshot.js";
import { showCards, showEngines, showLimits, showMetrics, showNamespaces, showRefusal, showRequests, showTiers } from "./tables.js";

const REQUESTS_MAX = 1000; // of the ring: what a pool keeps

const recent = new Recent();
let ring = [];
let lastNumber = 0;
let refusal = null; // what was said to who may not see requests

async function askPool() {
  return [await ask("stats.json"), refusal ?? await ask(`requests.json?after=${lastNumber}&last=${REQUESTS_MAX}`)];
}

function show([stats, requests]) {
  const snapshot = new Snapshot(stats, Date.now() / 1000);
  if (showCharts(recent, snapshot)) {
    ring = [];
    lastNumber = 0;
  }
  const { json } = snapshot;
  setText(byId("pool"), `Process ${json.pid}, Forebay ${plain(json.forebay)}, up ${seconds(json.uptime_s)}, ${plain(json.socket)}`);
  showCards(snapshot);
  showLimits(recent);
  showTiers(snapshot);
  showEngines(snapshot);
  showNamespaces(snapshot);
  showMetrics(snapshot);
  takeRequests(requests);
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

for (const id of ["request-filter", "decision-filter", "request-count"]) {
  byId(id).addEventListener("input", () => showRequests(ring, recent.newest !== undefined));
}
byId("metrics-details").addEventListener("toggle", () => recent.newest && showMetrics(recent.newest));
begin(PANELS, askPool, show);
