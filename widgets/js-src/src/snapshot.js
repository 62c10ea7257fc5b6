// What a Snapshot says, worked out: pure, no page.

import { DTYPES } from "./words.js";
import { bits, lasted, rankLabel, seconds } from "./units.js";

/** @typedef {import("./types.js").Snapshot} Snapshot */
/** @typedef {import("./types.js").LinkView} LinkView */
/** @typedef {import("./types.js").RankView} RankView */
/** @typedef {import("./types.js").GpuView} GpuView */
/** @typedef {import("./types.js").Collective} Collective */
/** @typedef {"ring" | "mesh" | "none"} Shape */

/** @param {Collective} one for example `all_sum #17 f32[1000]`, or `recv #3 f32[4] from rank 0` */
export function collective(one) {
  const peer = (one.peer ?? null) === null ? "" : ` ${one.op === "send" ? "to" : "from"} rank ${one.peer}`;
  return `${one.op} #${one.number} ${DTYPES[one.dtype] ?? one.dtype}[${(one.shape ?? []).join(",")}]${peer}`;
}

/** @param {RankView} rank what it does, in a few words */
export function doing(rank) {
  if (rank.state === "waiting" && rank.collective) return `in ${collective(rank.collective)}`;
  if (rank.cause && ["dead", "failed", "idle"].includes(rank.state ?? "")) return rank.cause;
  if (rank.line) return `line ${rank.line}`;
  return "";
}

/**
 * The state of a rank in a word, as Python's `state_word` (status.py). Every collective takes its time: a rank waits only
 * once that is long, if a task of an earlier cell is blocked in it, or if it is not known for how long.
 * @param {RankView} rank
 * @param {number} behind seconds since the snapshot was made
 */
export function stateOf(rank, behind) {
  if (rank.state === "waiting" && !rank.in_task && (rank.since ?? HANGS_AFTER) + behind < HANGS_AFTER) return "exchanging";
  return rank.state ?? "starting";
}

/** @param {string} state whether it counts on */
export const counts = (state) => ["running", "exchanging", "waiting", "debugging"].includes(state);

const HANGS_AFTER = 2; // seconds in a collective before the ranks that are missing are named
const ENDED_AFTER = 5; // seconds before a button ends what they wait for: a checkpoint takes long, too

/** @typedef {{ranks: RankView[], waiting: RankView[], since: number}} Hang */

/** @type {WeakMap<Snapshot, Hang | null>} several pictures ask for each frame */
const hangs = new WeakMap();

/**
 * The ranks that are missing in a collective, and those that have waited for them there; null before `HANGS_AFTER`.
 * @param {Snapshot} snapshot
 * @returns {Hang | null}
 */
export function missing(snapshot) {
  let found = hangs.get(snapshot);
  if (found === undefined) hangs.set(snapshot, (found = hangOf(snapshot)));
  return found;
}

/** @param {Snapshot} snapshot @returns {Hang | null} */
function hangOf(snapshot) {
  const inOne = snapshot.ranks.filter((rank) => rank.state === "waiting" && rank.collective && rank.collective.shared !== false);
  const number = Math.max(-1, ...inOne.map((rank) => rank.collective?.number ?? -1));
  const waiting = inOne.filter((rank) => rank.collective?.number === number);
  const since = Math.max(0, ...waiting.map((rank) => rank.since ?? 0));
  if (since < HANGS_AFTER) return null;
  const those = new Set(waiting);
  const ranks = snapshot.ranks.filter((rank) => !those.has(rank) && rank.state !== "dead");
  return ranks.length ? { ranks, waiting, since } : null;
}

const MOST_NAMED = 8; // ranks in the first line

/**
 * The state of the world in a few words.
 * @param {Snapshot} snapshot
 */
export function worldState(snapshot) {
  if (snapshot.state !== "whole") return snapshot.state;
  const late = missing(snapshot)?.ranks ?? [];
  if (!late.length) return "ready";
  return `waiting for ${late.length > MOST_NAMED ? `${late.length} ranks` : rankLabel(late.map((rank) => rank.rank))}`;
}

/** @type {WeakMap<Snapshot, string>} */
const standings = new WeakMap();

/**
 * Whether all that is not a figure is the same in both: who is there, in which state, what is wrong. Figures are what
 * goes on all the time while ranks run: rates, memory, lines, numbers of collectives.
 * @param {Snapshot} before
 * @param {Snapshot} after
 */
export const sameStanding = (before, after) => standing(before) === standing(after);

/** @param {Snapshot} snapshot @returns {string} equal where the standing state is */
function standing(snapshot) {
  let text = standings.get(snapshot);
  if (text === undefined) {
    const { name, backend, state, notes, straggler, hosts, links, ranks, peak } = snapshot;
    // A rank that trains goes in and out of collectives many times a second.
    const stateNow = (/** @type {RankView} */ rank) => (stateOf(rank, 0) === "exchanging" ? "running" : rank.state);
    const each = ranks.map((rank) => [stateNow(rank), rank.host, rank.cause, rank.compiler]);
    const broken = findings(snapshot).map((one) => one.why).filter(Boolean);
    text = JSON.stringify([name, backend, state, notes, straggler, hosts?.map((host) => host.name), links?.length, each, broken, peak]);
    standings.set(snapshot, text);
  }
  return text;
}

/** @typedef {{text: string, kind: "bad" | "wait", button: string, verb: string, ranks: (number | null)[]}} Advice */

/**
 * What is wrong with the world as a whole, and what can be done about it: dead ranks before ranks that others wait for.
 * @param {Snapshot} snapshot
 * @param {number} behind seconds since it was made
 * @returns {Advice | null}
 */
export function advice(snapshot, behind) {
  const numbers = (/** @type {RankView[]} */ ranks) => ranks.map((rank) => rank.rank);
  const dead = snapshot.ranks.filter((rank) => rank.state === "dead");
  if (dead.length) {
    const causes = [...new Set(dead.map((rank) => rank.cause).filter(Boolean))];
    const text = `${capital(rankLabel(numbers(dead)))} ${dead.length === 1 ? "is" : "are"} dead${causes.length ? `: ${causes.join("; ")}` : ""}.`;
    return { text, kind: "bad", button: "Heal", verb: "heal", ranks: [null] };
  }
  const hang = missing(snapshot);
  if (!hang) return null;
  const [late] = hang.ranks;
  const of = hang.waiting[0].collective;
  const at = late.line ? `line ${late.line}${late.source ? `: ${late.source.trim()}` : ""}` : (late.state ?? "");
  const what = hang.ranks.length === 1 && at ? ` (${at})` : "";
  const waits = hang.waiting.length === 1 ? "waits" : "wait";
  const text = `${capital(rankLabel(numbers(hang.waiting)))} ${waits} in ${of ? collective(of) : "a collective"} for ${rankLabel(numbers(hang.ranks))}${what}, for ${lasted(hang.since + behind)}.`;
  const busy = hang.ranks.filter((rank) => rank.state === "running");
  if (busy.length && hang.since + behind < ENDED_AFTER) return { text, kind: "wait", button: "", verb: "", ranks: [] };
  if (busy.length) return { text, kind: "wait", button: `Interrupt ${rankLabel(numbers(busy))}`, verb: "interrupt", ranks: numbers(busy) };
  return { text, kind: "wait", button: "Abort collective", verb: "abort", ranks: [null] };
}

/** @param {string} text */
const capital = (text) => text[0].toUpperCase() + text.slice(1);

/** @param {Snapshot} snapshot whether its links make a ring of the ranks in order, or reach further */
export function shapeOf(snapshot) {
  const size = snapshot.ranks.length;
  const links = snapshot.links ?? [];
  if (!links.length) return /** @type {Shape} */ ("none");
  const ring = links.every(({ link }) => {
    const apart = (link.target - link.source + size) % size;
    return apart === 1 || apart === size - 1;
  });
  return /** @type {Shape} */ (ring ? "ring" : "mesh");
}

/**
 * Of each link, which one it is of those with the same ends (several cables), and these.
 * @param {LinkView[]} links
 */
export function wiresOf(links) {
  /** @type {Map<string, LinkView[]>} */
  const pairs = new Map();
  return links.map((view) => {
    const ends = `${view.link.source} ${view.link.target}`;
    const all = pairs.get(ends) ?? [];
    pairs.set(ends, all);
    return { nth: all.push(view) - 1, all };
  });
}

/**
 * The items by what `keyOf` says of each, in the order in which they come.
 * @template T, K
 * @param {T[]} items
 * @param {(item: T) => K} keyOf
 * @returns {Map<K, T[]>}
 */
export function grouped(items, keyOf) {
  /** @type {Map<K, T[]>} */
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    const group = groups.get(key);
    if (group) group.push(item);
    else groups.set(key, [item]);
  }
  return groups;
}

/** @param {(number | null | undefined)[]} values */
export function median(values) {
  const known = values.filter((value) => value !== null && value !== undefined).sort((a, b) => a - b);
  if (!known.length) return null;
  const half = known.length >> 1;
  return known.length % 2 ? known[half] : (known[half - 1] + known[half]) / 2;
}

/**
 * The sum of what is known, null if nothing is.
 * @param {(number | null | undefined)[]} values
 * @returns {number | null}
 */
export function sum(values) {
  let total = null;
  for (const value of values) if (value !== null && value !== undefined) total = (total ?? 0) + value;
  return total;
}

const BUSY = 1e5; // bytes a second: below it a link's round trip says nothing about the cable
const LATE = 2e-3; // seconds: a round trip below it is not worth a word

/** @param {number | null | undefined} value */
const isKnown = (value) => value !== null && value !== undefined;

/** @typedef {{view: LinkView, missing: boolean, slow: boolean, share: number | null, why: string}} LinkFinding */

/**
 * What is to be said of each link. Missing: both ranks live, and its sender knows of no such connection, though others
 * of its kind are known. Slow: its interface claims less than half of what others of its kind do, or its round trip takes
 * five times as long while it is busy. Rates say nothing: the links of a ring carry the same, one way round.
 * @param {Snapshot} snapshot
 * @returns {LinkFinding[]}
 */
export function findings(snapshot) {
  const links = snapshot.links ?? [];
  const states = new Map(snapshot.ranks.map((rank) => [rank.rank, rank.state ?? "starting"]));
  const usual = new Map(
    [...grouped(links, (view) => view.link.kind)].map(([kind, views]) => [
      kind,
      { nominal: median(views.map((view) => view.nominal)), rtt: median(views.map((view) => view.rtt)), known: views.some((view) => isKnown(view.sent)) },
    ]),
  );
  return links.map((view) => {
    const { link, nominal, rtt } = view;
    const known = isKnown(view.rate);
    const live = [link.source, link.target].every((rank) => !["dead", "starting"].includes(states.get(rank) ?? "dead"));
    const of = usual.get(link.kind);
    const missing = live && !known && !isKnown(view.sent) && Boolean(of?.known);
    const where = link.interface ? ` (${link.kind}, ${link.interface})` : ` (${link.kind})`;
    const name = `link ${link.source} → ${link.target}${where}`;
    let why = "";
    if (nominal && of?.nominal && nominal < of.nominal / 2)
      why = `${name} is slow: ${bits(nominal)}, where others of its kind have ${bits(of.nominal)}`;
    else if (link.kind !== "loopback" && rtt && of?.rtt && rtt > LATE && rtt > 5 * of.rtt && (view.rate ?? 0) > BUSY)
      why = `${name} is slow: a round trip takes ${seconds(rtt)}, where others of its kind take ${seconds(of.rtt)}`;
    else if (missing) why = `${name} is missing: its rank has no such connection`;
    const share = known && nominal ? (/** @type {number} */ (view.rate) * 8) / nominal : null;
    return { view, missing, slow: Boolean(why) && !missing, share, why };
  });
}

/** @typedef {{nominal: number, rate: number}} Fastest bits and bytes a second, at least one */

/** @param {LinkView[]} links @returns {Fastest} the nominal speed and, of links without one, the rate of the thickest lines */
export const fastest = (links) => ({
  nominal: Math.max(1, ...links.map((view) => view.nominal ?? 0)),
  rate: Math.max(1, ...links.map((view) => (view.nominal ? 0 : (view.rate ?? 0)))),
});

/**
 * How thick the line of a link is, in pixels: by how fast its cable is among those whose speed is known, or by its rate
 * among the others. What a cable could carry and what another one carries now cannot be compared.
 * @param {LinkView} view
 * @param {Fastest} top
 */
export function thickness(view, top) {
  const share = view.nominal ? view.nominal / top.nominal : (view.rate ?? 0) / top.rate;
  return 1.25 + 2.25 * Math.sqrt(Math.min(1, share));
}

/**
 * Hosts in the order of their first rank, with the ranks on each; hosts without ranks last.
 * @param {Snapshot} snapshot
 */
export function hostsOf(snapshot) {
  const known = new Map((snapshot.hosts ?? []).map((host) => [host.name, host]));
  const on = grouped([...snapshot.ranks].sort((a, b) => a.rank - b.rank), (rank) => rank.host);
  for (const name of known.keys()) if (!on.has(name)) on.set(name, []);
  return [...on].map(([name, ranks]) => ({ host: known.get(name) ?? { name }, ranks }));
}

/**
 * The GPUs on which ranks compute, each once, with those of the ranks that share it.
 * @param {RankView[]} ranks of one host
 * @returns {{gpu: GpuView, ranks: number[]}[]}
 */
export function gpusOf(ranks) {
  const on = grouped(ranks.filter((rank) => rank.gpu), (rank) => rank.gpu?.id ?? "");
  return [...on.values()].map((sharing) => ({
    gpu: /** @type {GpuView} */ (sharing[sharing.length - 1].gpu), ranks: sharing.map((rank) => rank.rank),
  }));
}

/** @typedef {"mac" | "gpus" | "machine"} HostKind */

/**
 * What kind of machine a host is, as far as it is known.
 * @param {import("./types.js").HostView} host
 * @param {RankView[]} ranks on it
 * @returns {HostKind}
 */
export function kindOf(host, ranks) {
  if (/^(Mac( |\d|mini|Book|Pro)|iMac)/.test(host.model ?? "") || /^Apple /.test(host.chip ?? "")) return "mac";
  return ranks.some((rank) => rank.gpu) ? "gpus" : "machine";
}

/** @typedef {{op: string, ranks: number, calls: number, nbytes: number, smallest: number, largest: number,
 *   transfer: number | null, wait: number | null}} OpRow */

/**
 * One row for each operation: calls and bytes summed over the ranks, times as their means.
 * @param {Snapshot} snapshot
 * @returns {OpRow[]}
 */
export function operations(snapshot) {
  const by = grouped(snapshot.ranks.flatMap((rank) => rank.ops ?? []), (one) => one.op);
  const mean = (/** @type {(number | undefined)[]} */ values) => {
    const known = values.filter((value) => value !== null && value !== undefined);
    const total = sum(known);
    return total === null ? null : total / known.length;
  };
  return [...by].map(([op, ops]) => ({
    op,
    ranks: ops.length,
    calls: ops.reduce((total, one) => total + one.calls, 0),
    nbytes: ops.reduce((total, one) => total + one.nbytes, 0),
    smallest: Math.min(...ops.map((one) => one.smallest)),
    largest: Math.max(...ops.map((one) => one.largest)),
    transfer: mean(ops.map((one) => one.transfer)),
    wait: mean(ops.map((one) => one.wait)),
  }));
}
