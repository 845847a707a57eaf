// Numbers and text for people: pure functions. `null` and `undefined` become a dash.

const NOTHING = "–";
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const SPANS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

export const WAITING = "Waiting for the pool …"; // where nothing is known yet

const isKnown = (value) => value !== null && value !== undefined && !Number.isNaN(value);

function rounded(value) {
  const size = Math.abs(value);
  const digits = size === 0 || size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.01 ? 2 : 4;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

export function count(value) {
  if (!isKnown(value)) return NOTHING;
  return Number.isInteger(value) ? value.toLocaleString("en") : rounded(value);
}

export function bytes(value) {
  if (!isKnown(value)) return NOTHING;
  let amount = value;
  let at = 0;
  while (Math.abs(amount) >= 1024 && at < SIZES.length - 1) {
    amount /= 1024;
    at += 1;
  }
  return `${rounded(amount)} ${SIZES[at]}`;
}

export const byteRate = (value) => (isKnown(value) ? `${bytes(value)}/s` : NOTHING);

export const rate = (value) => (isKnown(value) ? `${rounded(value)}/s` : NOTHING);

export const percent = (value) => (isKnown(value) ? `${rounded(100 * value)} %` : NOTHING);

// A span of time, in its two largest units: 1.5 ms, 20 s, 3 min 12 s, 2 h 24 min, 12 d.
export function seconds(value) {
  if (!isKnown(value)) return NOTHING;
  if (!Number.isFinite(value)) return "∞";
  const size = Math.abs(value);
  const at = SPANS.findIndex(([span]) => span > 1 && size >= span);
  if (at >= 0) {
    const [[span, unit], [less, lesser]] = SPANS.slice(at);
    const rest = Math.floor((size % span) / less);
    return `${count(Math.trunc(value / span))} ${unit}${rest ? ` ${rest} ${lesser}` : ""}`;
  }
  if (size >= 1 || size === 0) return `${rounded(value)} s`;
  return size >= 1e-3 ? `${rounded(1e3 * value)} ms` : `${rounded(1e6 * value)} µs`;
}

export const milliseconds = (value) => (isKnown(value) ? seconds(value / 1e3) : NOTHING);

export const clock = (milliseconds_) => new Date(milliseconds_).toLocaleTimeString("en-GB");

// Text that somebody else chose, as one line: what steers a terminal or turns text round is shown.
export function plain(text, lettersMax = 200) {
  const shown = String(text ?? "").replace(
    /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    (letter) => `\\u${letter.codePointAt(0).toString(16).padStart(4, "0")}`,
  );
  return shown.length > lettersMax ? `${shown.slice(0, lettersMax - 1)}…` : shown;
}

// A model by its name.
export const modelName = (name) => plain(name) || "(no name)";

// `tier_off` as words.
export const words = (name) => plain(name).replaceAll("_", " ");
