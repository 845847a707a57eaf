// What charts are made of: rates and shares of what was added between two snapshots.

import { added } from "./snapshot.js";

const RATE_S = 10; // a rate is the mean of so many seconds
const SHARE_S = 60; // shares and means of a request are of the last minute

export const mapped = (values, change) => new Map([...values].map(([name, value]) => [name, change(value, name)]));

// By how much a metric's sums have risen a second.
export function rates(recent, name, keys, wanted = {}) {
  const then = recent.back(RATE_S);
  if (then === null) return new Map();
  const span = recent.newest.time - then.time;
  const rise = added(recent.newest.by(name, keys, wanted), then.by(name, keys, wanted));
  return mapped(rise, (value) => value / span);
}

// The share that each value of a label has of what was added; null where nothing was.
export function shares(recent, name, key) {
  const then = recent.back(SHARE_S);
  if (then === null) return new Map();
  const rise = added(recent.newest.by(name, [key]), then.by(name, [key]));
  const all = [...rise.values()].reduce((sum, value) => sum + value, 0);
  return mapped(rise, (value) => (all ? value / all : null));
}

// What is no success, by reason; a reason that never was is left out.
export function failures(recent, name, keys, wanted, good) {
  const totals = recent.newest.by(name, keys, wanted);
  const found = rates(recent, name, keys, wanted);
  return new Map([...found].filter(([series]) => !good(series) && totals.get(series) > 0));
}

// By how much a metric has risen since an earlier snapshot.
export const risen = (recent, then, name, wanted) => (recent.newest.sum(name, wanted) ?? 0) - (then.sum(name, wanted) ?? 0);

// A panel over time.
export const over = (panel) => ({ overTime: true, ...panel });
