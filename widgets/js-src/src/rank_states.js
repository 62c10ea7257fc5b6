// The states of ranks over time, a letter for each rank and second. Pure, no page.

import { stateOf } from "./snapshot.js";

/** @typedef {import("./history.js").History} History */
/** @typedef {import("./types.js").RankView} RankView */
/** @typedef {"full" | "stripes" | "half" | "line" | "checks"} Pattern of a state, to be told without colour */

/** @type {Record<string, string>} by state, as in Python (allranks_widgets/_history.py) */
export const LETTERS = {
  planned: " ", starting: "s", idle: "i", running: "r", exchanging: "e", waiting: "w",
  debugging: "b", failed: "f", unblocked: "u", suspended: "t", silent: " ", dead: "d",
};

/** @type {Map<string, string>} */
export const STATES = new Map(Object.entries(LETTERS).map(([state, letter]) => [letter, state]));

/** @type {Record<string, [string, Pattern]>} by letter: its colour in style.css, as on the cards, and its pattern */
export const LOOKS = {
  s: ["accent", "half"], i: ["idle-line", "line"], r: ["ok", "full"], e: ["ok", "half"],
  w: ["wait", "stripes"], b: ["wait", "half"], f: ["bad", "full"], u: ["warn", "stripes"],
  t: ["warn", "full"], d: ["bad", "checks"],
};

const LEAST = { wide: 4, high: 2 }; // pixels of a field
const MOST_HIGH = 20;
const HOLDS = 5; // seconds for which a row holds, if none follows

/** @param {import("./types.js").Snapshot} snapshot @returns {string} the letters of its ranks, in their order */
export function lettersOf(snapshot) {
  /** @type {string[]} */
  const letters = [];
  for (const rank of snapshot.ranks) letters[rank.rank] = isHeard(rank) ? (LETTERS[stateOf(rank, 0)] ?? " ") : " ";
  return Array.from(letters, (letter) => letter ?? " ").join("");
}

/** @param {RankView} rank whether its state is known: it reports, and its host can be reached */
const isHeard = (rank) => (rank.away ?? null) === null && (rank.silent ?? null) === null;

/**
 * The states of the last seconds, from the first on of which something is known.
 * @param {History} history
 * @param {number} seconds
 * @returns {{at: number[], rows: string[]}} the seconds (Unix time), and for each rank a letter for each of them
 */
export function gridOf(history, seconds) {
  const { at, states } = history;
  const known = states.findIndex((letters) => letters.trim());
  if (known < 0) return { at: [], rows: [] };
  const end = at[at.length - 1];
  const first = Math.max(at[known], end - seconds + 1);
  const times = Array.from({ length: end - first + 1 }, (_, i) => first + i);
  let next = 0;
  const columns = times.map((time) => {
    while (next < at.length && at[next] <= time) next++;
    const last = next - 1;
    return last >= 0 && time - at[last] < HOLDS ? states[last] : "";
  });
  const size = Math.max(0, ...columns.map((column) => column.length));
  const row = (/** @type {number} */ rank) => columns.map((column) => column[rank] ?? " ").join("");
  return { at: times, rows: Array.from({ length: size }, (_, rank) => row(rank)) };
}

/**
 * The pieces of a row in which the state is the same; none where nothing is known.
 * @param {string} row
 * @returns {{start: number, length: number, letter: string}[]}
 */
export function runsOf(row) {
  const runs = [];
  for (let start = 0; start < row.length; ) {
    let end = start + 1;
    while (end < row.length && row[end] === row[start]) end++;
    if (row[start] !== " ") runs.push({ start, length: end - start, letter: row[start] });
    start = end;
  }
  return runs;
}

/**
 * How large a field of the grid is, in pixels: the rows of few ranks are high, and those of many are scrolled.
 * @param {number} ranks
 * @param {number} width
 * @param {number} height
 */
export function fieldOf(ranks, width, height) {
  const high = Math.max(LEAST.high, Math.min(MOST_HIGH, Math.floor(height / Math.max(1, ranks))));
  return { wide: LEAST.wide, high, seconds: Math.max(1, Math.floor(width / LEAST.wide)) };
}
