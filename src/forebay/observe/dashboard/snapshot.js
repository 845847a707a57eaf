// A snapshot of /stats.json to read values from, and the last minutes of them to tell rates from.

const RECENT_MAX = 200; // snapshots kept for rates: more than a minute of them at any interval
const RECENT_S = 70;

export class Snapshot {
  constructor(json, time) {
    this.json = json;
    this.time = time; // seconds since 1970, by this browser's clock
  }

  // All values of a metric as [labels, value]; none where the pool does not have it.
  rows(name) {
    return this.json.metrics?.[name]?.values ?? [];
  }

  // The sum over all values whose labels are those of `wanted`; null where there is none.
  sum(name, wanted = {}) {
    let found = null;
    for (const [labels, value] of this.rows(name)) {
      if (Object.entries(wanted).every(([key, text]) => labels[key] === text)) {
        found = (found ?? 0) + (typeof value === "number" ? value : value.count);
      }
    }
    return found;
  }

  // The sums by one label, or by several: names joined by a space.
  by(name, keys, wanted = {}) {
    const found = new Map();
    for (const [labels, value] of this.rows(name)) {
      if (!Object.entries(wanted).every(([key, text]) => labels[key] === text)) continue;
      const series = keys.map((key) => labels[key] ?? "").join(" ");
      const amount = typeof value === "number" ? value : value.count;
      found.set(series, (found.get(series) ?? 0) + amount);
    }
    return found;
  }

  // All histograms of a name added up by one label: name to { buckets, sum, count }.
  histograms(name, key) {
    const found = new Map();
    for (const [labels, value] of this.rows(name)) {
      const series = labels[key] ?? "";
      const known = found.get(series);
      if (known === undefined) {
        found.set(series, { ...value, buckets: value.buckets.map(([upper, n]) => [upper, n]) });
      } else {
        known.sum += value.sum;
        known.count += value.count;
        value.buckets.forEach(([, n], at) => { known.buckets[at][1] += n; });
      }
    }
    return found;
  }

  // The sum of a histogram's observations.
  total(name, wanted = {}) {
    return this.rows(name).reduce((sum, [labels, value]) => {
      const fits = Object.entries(wanted).every(([key, text]) => labels[key] === text);
      return fits ? sum + value.sum : sum;
    }, 0);
  }
}

// The snapshots of the last minute, oldest first; begun anew with every pool.
export class Recent {
  constructor() {
    this.snapshots = [];
  }

  get newest() {
    return this.snapshots.at(-1);
  }

  // Whether it came from another pool than the one before it.
  add(snapshot) {
    const before = this.newest?.json;
    const isOther = before !== undefined
      && (before.pid !== snapshot.json.pid || before.uptime_s > snapshot.json.uptime_s);
    if (isOther) this.snapshots = [];
    this.snapshots.push(snapshot);
    while (this.snapshots.length > RECENT_MAX || this.snapshots[0].time < snapshot.time - RECENT_S) {
      this.snapshots.shift();
    }
    return isOther;
  }

  // The newest snapshot that is at least so old, or the oldest; null while there is only one.
  back(spanS) {
    if (this.snapshots.length < 2) return null;
    const { time } = this.newest;
    return this.snapshots.findLast((each) => each.time <= time - spanS) ?? this.snapshots[0];
  }
}

// What was added by name between two results of `by`; a name that is new began at 0.
export function added(now, then) {
  const found = new Map();
  for (const [name, value] of now) found.set(name, Math.max(0, value - (then.get(name) ?? 0)));
  return found;
}

// A bucket's upper bound as a number: JSON has none for infinity.
export const bound = (upper) => (typeof upper === "number" ? upper : Infinity);
