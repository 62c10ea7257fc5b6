// What each view finds, in a few words beside its name. Pure, no page.

import { plain } from "./ansi.js";
import { mean } from "./history.js";
import { findings, missing, operations, sum } from "./snapshot.js";
import * as units from "./units.js";

/** @typedef {import("./types.js").Snapshot} Snapshot */
/** @typedef {import("./snapshot.js").LinkFinding} LinkFinding */
/** @typedef {{text: string, wrong?: boolean, bad?: boolean, whole?: string}} Headline `wrong` with a sign of warning, `bad` in the colour of errors; `whole` says more */

const MOST_POINTS = 100; // points from which a trend is computed
const LEAST_POINTS = 6;
const LONGEST = 80; // characters of a line of output
const STARTING = "The world is starting"; // which is no trouble

/**
 * What is wrong with the world as a whole, in the words of Python's `finding` (topology_picture.py); else empty.
 * @param {Snapshot} snapshot
 */
export function ofTrouble(snapshot) {
  const ranks = [...snapshot.ranks].sort((a, b) => a.rank - b.rank);
  for (const [state, one, several] of [["dead", "is dead", "are dead"], ["failed", "failed", "failed"]]) {
    const found = ranks.filter((rank) => rank.state === state);
    if (!found.length) continue;
    const causes = [...new Set(found.map((rank) => printable(rank.cause ?? "")).filter(Boolean))].join("; ");
    return `${capital(label(found))} ${found.length === 1 ? one : several}${causes && `: ${causes}`}`;
  }
  const away = ranks.filter((rank) => (rank.away ?? null) !== null);
  if (away.length) return `${capital(label(away))} ${away.length === 1 ? "is" : "are"} out of reach`;
  const late = missing(snapshot)?.ranks ?? [];
  if (late.length) {
    const waiting = ranks.filter((rank) => !late.includes(rank));
    return `${capital(label(waiting))} ${waiting.length === 1 ? "waits" : "wait"} for ${label(late)}`;
  }
  return ranks.length && !["whole", "planned", "down"].includes(snapshot.state) ? `The world is ${snapshot.state}` : "";
}

/**
 * The title of a picture of the world: what is wrong with it, else with its links, else the rank that others wait for
 * longest; empty if there is nothing of these.
 * @param {Snapshot} snapshot
 */
export function ofWorld(snapshot) {
  const links = ofLinks(findings(snapshot));
  const straggler = printable(snapshot.straggler ?? "").replace(/\.+$/, "");
  return ofTrouble(snapshot) || capital(links.wrong ? links.text : straggler);
}

/**
 * @param {Snapshot} snapshot
 * @param {LinkFinding[]} found its links
 * @returns {Headline} of the view of its hosts, ranks and links
 */
export function ofTopology(snapshot, found) {
  const text = ofTrouble(snapshot);
  const bad = snapshot.ranks.some((rank) => rank.state === "dead" || rank.state === "failed");
  return text ? { text, wrong: text !== STARTING, bad, whole: text } : ofLinks(found);
}

/** @param {import("./types.js").RankView[]} ranks */
const label = (ranks) => units.rankLabel(ranks.map((rank) => rank.rank));

/** @param {string} text */
export const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

/** @param {string} text in one line: causes come from the ranks */
const printable = (text) => text.replace(/\p{C}|[\u2028\u2029]/gu, " ");

/** @param {LinkFinding[]} found @returns {Headline} */
export function ofLinks(found) {
  const [wrong, others] = [found.filter((one) => one.why), found.filter((one) => (one.view.rate ?? 0) > 0)];
  if (wrong.length) {
    const { view: { link }, missing } = wrong[0];
    const more = wrong.length > 1 ? ` and ${wrong.length - 1} more` : "";
    const text = `link ${link.source} → ${link.target} is ${missing ? "missing" : "slow"}${more}`;
    return { text, wrong: true, whole: wrong.map((one) => one.why).join("\n") };
  }
  const known = found.map((one) => one.view.rate).filter((rate) => rate !== null && rate !== undefined);
  if (!known.length) return { text: "" };
  if (!others.length) return { text: "no traffic" };
  return { text: `${units.rate(sum(known))} on ${others.length === found.length ? "all " : `${others.length} of `}${units.counted(found.length, "link")}` };
}

/** @param {Snapshot} snapshot @returns {Headline} the operation that moved the most bytes, and how fast it is now */
export function ofTraffic(snapshot) {
  const rows = operations(snapshot);
  const [most] = [...rows].sort((one, other) => other.nbytes - one.nbytes);
  if (!most) return { text: "" };
  const rate = mean(snapshot.ranks.map((rank) => rank.effective));
  if (rate === null) return { text: `${most.op}, rate unknown` };
  return { text: rate > 0 ? `${most.op} ${units.rate(rate)}` : "no traffic" };
}

/** @param {import("./curves.js").Curves} curves @returns {Headline} */
export function ofCurves(curves) {
  const [name] = curves.names;
  if (!name) return { text: "" };
  const values = curves.columns(name, "range")[1].filter((value) => value !== undefined);
  if (values.at(-1) === null) return { text: `${name} is not a number`, wrong: true };
  const known = /** @type {number[]} */ (values.filter((value) => typeof value === "number"));
  if (!known.length) return { text: "" };
  return { text: [name, units.figure(Number(known[known.length - 1].toPrecision(3))), trend(known)].filter(Boolean).join(" ") };
}

/**
 * Where a curve goes lately: the mean of its last points beside that of as many before, if they differ by more than the
 * curve jumps from point to point.
 * @param {number[]} values
 * @returns {"falling" | "rising" | "steady" | ""} empty where points are too few
 */
export function trend(values) {
  const half = Math.min(MOST_POINTS / 2, values.length >> 1);
  if (2 * half < LEAST_POINTS) return "";
  const lately = values.slice(-2 * half);
  const average = (/** @type {number[]} */ some) => some.reduce((total, value) => total + value, 0) / some.length;
  const change = average(lately.slice(half)) - average(lately.slice(0, half));
  // Of points that jump about a level, successive ones differ by twice their variance; of those that move, by little more.
  const jumps = average(lately.slice(1).map((value, i) => (value - lately[i]) ** 2)) / 2;
  const scale = Math.max(...lately.map(Math.abs));
  if (Math.abs(change) <= Math.max(3 * Math.sqrt((2 * jumps) / half), 1e-3 * scale)) return "steady";
  return change < 0 ? "falling" : "rising";
}

/** @param {import("./output.js").Output} output @returns {Headline} the error, else the last line of the last cell */
export function ofOutput(output) {
  const cell = output.last;
  if (!cell) return { text: "" };
  const error = cell.errors[cell.errors.length - 1];
  if (error) return { text: `${error.ename} on ${units.rankLabel(error.ranks)}`, wrong: true, whole: error.evalue };
  const at = cell.segments.findLastIndex((one, i) => one.kind === "text" && cell.texts[i].trim());
  const line = at < 0 ? "" : plain(cell.texts[at]).replace(/\s+/g, " ").trim();
  return { text: line.length > LONGEST ? `${line.slice(0, LONGEST - 1)}…` : line, whole: line };
}
