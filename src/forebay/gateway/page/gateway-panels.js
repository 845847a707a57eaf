// What the charts of the gateway's page show.

import { count, rate, seconds } from "./format.js";
import { failures, over, rates, risen } from "./series.js";

const MEAN_S = 60; // a mean is of the last minute

const panel = (fields) => over({ waiting: "Waiting for the gateway …", ...fields });

// The mean of what a histogram was told in the last minute; null where it was told nothing.
function mean(recent, name) {
  const then = recent.back(MEAN_S);
  if (then === null) return null;
  const times = risen(recent, then, name);
  return times > 0 ? (recent.newest.total(name) - then.total(name)) / times : null;
}

export const PANELS = {
  engines: [
    panel({
      id: "requests", title: "Requests by engine", format: rate, isByOrder: true,
      what: "Requests that an engine answered, per second.",
      empty: "No request was answered yet.",
      read: (recent) => rates(recent, "gateway_requests", ["engine"]),
    }),
    panel({
      id: "running", title: "Running by engine", format: count, isByOrder: true,
      what: "Requests at each engine now.",
      read: (recent) => recent.newest.by("gateway_running", ["engine"]),
    }),
    panel({
      id: "prefill", title: "Prompt tokens under way", format: count, isByOrder: true,
      what: "Uncached prompt tokens at each engine whose first token has not come.",
      read: (recent) => recent.newest.by("gateway_prefill_tokens", ["engine"]),
    }),
    panel({
      id: "trouble", title: "Retried and broken", format: rate, isByOrder: true,
      what: "Requests that were sent to a second engine, and answers that broke off, per second, by engine.",
      empty: "No engine has failed.",
      read: (recent) => new Map(["retried", "broken"].flatMap((kind) => [...failures(recent, `gateway_${kind}`, ["engine"], {}, () => false)]
        .map(([engine, value]) => [`${engine} ${kind}`, value]))),
    }),
  ],
  queues: [
    panel({
      id: "waiting", title: "Waiting by key", format: count, isByOrder: true,
      what: "Requests that wait for an engine now, by the key that they came with.",
      read: (recent) => recent.newest.by("gateway_waiting", ["key"]),
    }),
    panel({
      id: "tokens", title: "Tokens by key", format: rate, isByOrder: true,
      what: "Uncached prompt tokens and answer tokens of each key, per second: what its share is counted in.",
      empty: "No request has ended.",
      read: (recent) => rates(recent, "gateway_tokens", ["key"]),
    }),
    panel({
      id: "queue", title: "Time in the queue", format: seconds,
      what: "Mean of the last minute's requests.",
      empty: "No request was placed in the last minute.",
      read: (recent) => new Map([["queue", mean(recent, "gateway_queue_seconds")]]),
    }),
    panel({
      id: "refused", title: "Refused by status", format: rate, isByOrder: true,
      what: "Requests that the gateway answered itself, per second: 429 is a key's limit, 503 means that no engine was free.",
      empty: "Nothing was refused.",
      read: (recent) => failures(recent, "gateway_refused", ["status"], {}, () => false),
    }),
  ],
  answers: [
    panel({
      id: "ttft", title: "Time to the first token, expected and real", format: seconds, isByOrder: true,
      what: "Means of the last minute's streamed answers, from an engine being given a request: what was expected when it was placed, and what came.",
      empty: "No streamed answer began in the last minute.",
      read: (recent) => new Map([["expected", mean(recent, "gateway_ttft_expected_seconds")], ["real", mean(recent, "gateway_ttft_seconds")]]),
    }),
    panel({
      id: "apart", title: "Prompts computed for another engine", format: rate, isByOrder: true,
      what: "Prefill and decode apart: prompts per second, by the engine that computed them and what became of it.",
      empty: "No prompt was computed by one engine for another.",
      read: (recent) => rates(recent, "gateway_prefilled", ["engine", "outcome"]),
    }),
  ],
  swaps: [
    panel({
      id: "swaps", title: "Swaps by engine", format: rate, isByOrder: true,
      what: "Times that an engine of a shared GPU was woken, per second.",
      empty: "No engine was woken.",
      read: (recent) => rates(recent, "gateway_swaps", ["engine"]),
    }),
    panel({
      id: "wake", title: "Time to wake", format: seconds,
      what: "Mean of the last minute's swaps, to the first token of the engine that was woken.",
      empty: "No engine was woken in the last minute.",
      read: (recent) => new Map([["wake", mean(recent, "gateway_wake_seconds")]]),
    }),
    panel({
      id: "kept", title: "Answers kept", format: rate, isByOrder: true,
      what: "Answers that were under way when their engine went to sleep, and go on when it wakes, per second.",
      empty: "No answer was under way when its engine went to sleep.",
      read: (recent) => rates(recent, "gateway_kept", ["engine"]),
    }),
    panel({
      id: "swap-failures", title: "Swaps that failed", format: rate, isByOrder: true,
      what: "Ways to have an engine sleep or wake that failed, per second, by step; the next way is tried.",
      empty: "No swap has failed.",
      read: (recent) => failures(recent, "gateway_swap_failures", ["engine", "step"], {}, () => false),
    }),
  ],
};
