// Figures in words. What is not known is said to be unknown.

export const UNKNOWN = "unknown";

/** @param {number} figure three significant digits at most, without an exponent */
function short(figure) {
  return figure >= 99.95 ? figure.toFixed(0) : figure >= 9.995 ? figure.toFixed(1) : figure.toFixed(2);
}

/**
 * Bytes in powers of ten: 1 kB = 1e3 bytes.
 * @param {number | null | undefined} n
 */
export function bytes(n) {
  if (n === null || n === undefined) return UNKNOWN;
  if (Math.abs(n) < 1000) return `${Math.round(n)} B`;
  for (const unit of ["kB", "MB", "GB"]) {
    n /= 1000;
    if (Math.abs(n) < 999.5) return `${short(n)} ${unit}`;
  }
  return `${short(n / 1000)} TB`;
}

/** @param {number | null | undefined} n bytes a second */
export function rate(n) {
  return n === null || n === undefined ? UNKNOWN : `${bytes(n)}/s`;
}

/** @param {number | null | undefined} n bits a second, as interfaces are sold */
export function bits(n) {
  if (n === null || n === undefined) return UNKNOWN;
  for (const [unit, size] of /** @type {[string, number][]} */ ([["Tbit/s", 1e12], ["Gbit/s", 1e9], ["Mbit/s", 1e6]]))
    if (n >= size) return `${Number((n / size).toPrecision(3))} ${unit}`;
  return `${Number((n / 1e3).toPrecision(3))} kbit/s`;
}

/** @param {number | null | undefined} share 1.0 for all of it */
export function percent(share) {
  if (share === null || share === undefined) return UNKNOWN;
  return share > 0 && share < 0.01 ? "<1 %" : `${Math.round(share * 100)} %`;
}

/** @param {number | null | undefined} s seconds */
export function seconds(s) {
  if (s === null || s === undefined) return UNKNOWN;
  if (s < 0.000995) return `${Math.round(s * 1e6)} µs`;
  if (s < 0.0995) return `${(s * 1000).toFixed(1)} ms`;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 99.5) return `${Math.round(s)} s`;
  const minutes = Math.floor(s / 60);
  return minutes < 60 ? `${minutes} min ${Math.floor(s % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** @param {number | null | undefined} s seconds that something has lasted: whole ones, so that the text changes seldom */
export function lasted(s) {
  if (s === null || s === undefined) return UNKNOWN;
  return s < 1 ? "<1 s" : s < 99.5 ? `${Math.floor(s)} s` : seconds(s);
}

/**
 * A figure of which nothing is known but that it is one: five significant digits.
 * @param {number | null | undefined} n
 */
export function figure(n) {
  if (n === null || n === undefined) return UNKNOWN;
  if (Number.isInteger(n) && Math.abs(n) < 1e9) return String(n);
  return String(Number(n.toPrecision(5)));
}

/** @param {number} n with a thin space between thousands */
export function count(n) {
  return String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/**
 * @param {number} n
 * @param {string} noun in the singular
 * @returns {string} `1 link`, `8 links`
 */
export const counted = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

/**
 * Ranks as a person writes them: `0`, `0-3`, `0, 2-3`.
 * @param {readonly number[]} ranks
 */
export function rankList(ranks) {
  const parts = [];
  const sorted = [...ranks].sort((a, b) => a - b);
  for (let i = 0; i < sorted.length; ) {
    let j = i;
    while (sorted[j + 1] === sorted[j] + 1) j++;
    parts.push(i === j ? `${sorted[i]}` : `${sorted[i]}-${sorted[j]}`);
    i = j + 1;
  }
  return parts.join(", ");
}

/** @param {readonly number[]} ranks `rank 2` or `ranks 0-3` */
export function rankLabel(ranks) {
  return `${ranks.length === 1 ? "rank" : "ranks"} ${rankList(ranks)}`;
}
