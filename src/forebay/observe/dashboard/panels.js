// What the charts show: each panel reads its series from the newest snapshot and an earlier one.

import { byteRate, count, percent, rate, seconds } from "./format.js";
import { failures, mapped, over, rates, shares } from "./series.js";
import { bound } from "./snapshot.js";

const SHARE_S = 60; // shares and means of a request are of the last minute

const TICKS_S = [1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400];

function savedOf(recent) {
  const then = recent.back(SHARE_S);
  if (then === null) return new Map();
  const rise = (name, wanted) => (recent.newest.sum(name, wanted) ?? 0) - (then.sum(name, wanted) ?? 0);
  const saved = rise("saved_gpu_seconds_estimate");
  const mean = (requests) => (requests > 0 ? saved / requests : null);
  return new Map([["each request", mean(rise("requests"))], ["each loaded", mean(rise("requests", { outcome: "loaded" }))]]);
}

// The hit rate of lookups beside the waits: a pool that hits more may wait longer.
function waits(recent) {
  const then = recent.back(SHARE_S);
  if (then === null) return new Map();
  const absent = shares(recent, "lookup_chunks", "found").get("absent") ?? null;
  const tiers = new Set(recent.newest.rows("queue_wait_seconds").map(([labels]) => labels.tier));
  const found = new Map([["chunks found", absent === null ? null : 1 - absent]]);
  for (const tier of tiers) {
    for (const direction of ["load", "store"]) {
      const wanted = { tier, direction };
      const times = (recent.newest.sum("queue_wait_seconds", wanted) ?? 0) - (then.sum("queue_wait_seconds", wanted) ?? 0);
      const spent = recent.newest.total("queue_wait_seconds", wanted) - then.total("queue_wait_seconds", wanted);
      found.set(`${tier} ${direction}`, times > 0 ? spent / times : null);
    }
  }
  return found;
}

function occupancy(recent) {
  const caps = recent.newest.by("cap_bytes", ["tier"]);
  return mapped(recent.newest.by("used_bytes", ["tier"]), (used, tier) => (caps.get(tier) ? used / caps.get(tier) : null));
}

// For each tier the share of evicted chunks that had become older than x, and the share of reused
// ones that had waited for longer than x.
function lifetimes({ newest }) {
  const curves = [];
  for (const [metric, word] of [["age_at_eviction_seconds", "evicted"], ["gap_at_reuse_seconds", "reused"]]) {
    for (const [tier, histogram] of newest.histograms(metric, "tier")) {
      if (histogram.count > 0) curves.push([`${tier} ${word}`, histogram]);
    }
  }
  const bounds = new Set(curves.flatMap(([, { buckets }]) => buckets.map(([upper]) => bound(upper))));
  const all = [...bounds].filter((x) => Number.isFinite(x) && x > 0).sort((one, other) => one - other);
  // Not further than to the first bound that nothing exceeded.
  const exceeded = curves.flatMap(([, { buckets, count: n }]) => buckets.filter(([, under]) => under < n).map(([upper]) => upper));
  const last = all.findIndex((x) => x > Math.max(0, ...exceeded));
  const xs = last < 1 ? all : all.slice(0, last + 1);
  const series = new Map(curves.map(([name, { buckets, count: n }]) => {
    const known = new Map(buckets.map(([upper, cumulative]) => [bound(upper), cumulative]));
    return [name, xs.map((x) => (known.has(x) ? 1 - known.get(x) / n : null))];
  }));
  return { xs, series };
}

// Where a curve of `lifetimes` falls to one half: the median.
function median(xs, list) {
  const at = list.findIndex((value) => value !== null && value <= 0.5);
  return at < 0 ? Infinity : xs[at];
}

export const PANELS = {
  helping: [
    over({
      id: "hits", title: "Prompt tokens by where they came from", format: percent, upTo: 1,
      what: "Share of the last minute's prompt tokens: from the engine's own cache, from each tier of the pool, or computed.",
      empty: "No engine has reported a request in the last minute.",
      read: (recent) => shares(recent, "request_tokens", "source"),
    }),
    over({
      id: "lookups", title: "Chunks looked up, by tier", format: percent, upTo: 1,
      what: "Share of the chunks that were looked up in the last minute, by the nearest tier that had them.",
      empty: "Nothing was looked up in the last minute.",
      read: (recent) => shares(recent, "lookup_chunks", "found"),
    }),
    over({
      id: "saved", title: "Time to first token saved", format: seconds,
      what: "Estimate: GPU time that was not spent, as a mean of the last minute's requests.",
      empty: "No request was given anything in the last minute.",
      read: savedOf,
    }),
    over({
      id: "bandwidth", title: "Bandwidth by tier and direction", format: byteRate, isBytes: true,
      what: "Payload bytes that were moved, as a mean of ten seconds. Loads go towards the GPU.",
      read: (recent) => rates(recent, "moved_bytes", ["tier", "direction"]),
    }),
  ],
  misses: [
    over({
      id: "decisions", title: "Requests by decision", format: rate, isByOrder: true,
      what: "What became of requests, per second: loaded from the pool, or why not.",
      empty: "No engine has reported a request.",
      read: (recent) => failures(recent, "requests", ["outcome"], {}, () => false),
    }),
    over({
      id: "misses", title: "Misses by reason", format: rate, isByOrder: true,
      what: "Requests that loaded nothing, per second, by the reason that forebay why gives.",
      empty: "No request has missed.",
      read: (recent) => failures(recent, "requests", ["outcome"], {}, (name) => name === "loaded"),
    }),
    over({
      id: "failed-loads", title: "Failed loads by reason", format: rate, isByOrder: true,
      what: "Loads of a tier that gave nothing, per second.",
      empty: "No load has failed.",
      read: (recent) => failures(recent, "operations", ["tier", "outcome"], { direction: "load" }, (name) => name.endsWith(" ok")),
    }),
    over({
      id: "drops", title: "Stores refused or dropped, by reason", format: rate, isByOrder: true,
      what: "Chunks that an engine offered and the pool did not take, or that a tier dropped, per second. Most of \"have\" is good news.",
      empty: "No store was refused or dropped.",
      read: (recent) => new Map([
        ...failures(recent, "stores_refused", ["reason"], {}, () => false),
        ...failures(recent, "operations", ["tier", "outcome"], { direction: "store" }, (name) => name.endsWith(" ok")),
      ]),
    }),
    over({
      id: "waits", title: "Hit rate and queue wait", format: seconds, share: "chunks found",
      what: "Left: mean wait of an operation in a tier's queue. Right: share of looked-up chunks that were found. Both of the last minute.",
      empty: "Nothing waited in the last minute.",
      read: waits,
    }),
  ],
  limits: [
    over({
      id: "occupancy", title: "Occupancy by tier", format: percent, upTo: 1,
      what: "Bytes used of each tier's cap. A full tier is normal: the policy decides what leaves.",
      read: occupancy,
    }),
    {
      id: "lifetimes", title: "Age at eviction, gap at reuse", format: percent, upTo: 1, overTime: false,
      what: "Share of evicted chunks that had become older than a time, and of reused chunks that had waited for longer. Reuse left of eviction: the tier is large enough.",
      empty: "Nothing was evicted or reused yet.",
      nameX: "longer than", formatX: seconds, ticksX: TICKS_S, summary: median,
      formatSummary: (value) => `median ${value === Infinity ? "over the last bound" : `under ${seconds(value)}`}`,
      readCurves: lifetimes,
    },
    over({
      id: "queues", title: "Queue depth by tier", format: count,
      what: "Operations that wait for a drive now.",
      read: (recent) => recent.newest.by("queue_depth", ["tier", "direction"]),
    }),
    over({
      id: "wear", title: "Written to drives", format: byteRate, isBytes: true, isByOrder: true,
      what: "Bytes that drives were given to write, by tier and directory, as a mean of ten seconds: this is what wears them.",
      empty: "This pool has no drive.",
      read: (recent) => rates(recent, "written_bytes", ["tier", "volume"]),
    }),
  ],
};
