// How much each rank, or each host, sends to each other one, worked out: pure, no page.

/** @typedef {import("./snapshot.js").LinkFinding} LinkFinding */
/** @typedef {ReturnType<typeof import("./snapshot.js").hostsOf>} Hosts */
/** @typedef {"none" | "unknown" | "idle" | "busy" | "slow" | "missing"} CellState */
/** @typedef {{name: string, host: number}} Group one rank, or all of a host; `host` is its place among the hosts */
/** @typedef {{groups: Group[], places: Map<number, number>, rates: Float64Array, states: CellState[], top: number}} Traffic
 *   `places` of ranks among the groups; `rates` in bytes a second, row after row, what rank or host sends to that of the
 *   column; `top` is the highest */

/** @type {CellState[]} the later is the one to be seen where a cell stands for several links */
const WORSE = ["none", "unknown", "idle", "busy", "slow", "missing"];

/**
 * @param {LinkFinding[]} found
 * @param {Hosts} hosts
 * @param {boolean} byHost a row for each host, in place of each rank
 * @returns {Traffic}
 */
export function trafficOf(found, hosts, byHost) {
  const groups = hosts.flatMap(({ host, ranks }, at) =>
    byHost ? [{ name: host.name, host: at }] : ranks.map(({ rank }) => ({ name: String(rank), host: at })));
  const ends = hosts.flatMap(({ ranks }, at) => ranks.map(({ rank }) => ({ rank, at })));
  const places = new Map(ends.map(({ rank, at }, i) => [rank, byHost ? at : i]));
  const n = groups.length;
  const rates = new Float64Array(n * n);
  const states = new Array(n * n).fill("none");
  for (const one of found) {
    const [row, column] = [places.get(one.view.link.source), places.get(one.view.link.target)];
    if (row === undefined || column === undefined) continue;
    const at = row * n + column;
    rates[at] += one.view.rate ?? 0;
    const state = stateOf(one);
    if (WORSE.indexOf(state) > WORSE.indexOf(states[at])) states[at] = state;
  }
  return { groups, places, rates, states, top: rates.reduce((most, rate) => Math.max(most, rate), 0) };
}

/** @param {LinkFinding} one @returns {CellState} */
function stateOf({ view, missing, slow }) {
  if (missing) return "missing";
  if (slow) return "slow";
  if (view.rate === null || view.rate === undefined) return "unknown";
  return view.rate > 0 ? "busy" : "idle";
}

/**
 * The links that a cell stands for.
 * @param {Traffic} traffic
 * @param {LinkFinding[]} found
 * @param {number} at its place
 */
export function linksAt({ groups, places }, found, at) {
  const [row, column] = [Math.floor(at / groups.length), at % groups.length];
  return found.filter(({ view: { link } }) => places.get(link.source) === row && places.get(link.target) === column);
}

/**
 * The cells with the most traffic, the busiest first; none of those that are idle.
 * @param {Traffic} traffic
 * @param {number} most
 * @returns {number[]} their places
 */
export function busiest({ rates }, most) {
  return [...rates.keys()].filter((at) => rates[at] > 0).sort((one, other) => rates[other] - rates[one]).slice(0, most);
}
