// Ten minutes of rates and states, one row a second. Pure, no page.

import { lettersOf } from "./rank_states.js";
import { sum } from "./snapshot.js";

/** @typedef {import("./types.js").Snapshot} Snapshot */
/** @typedef {number | null} Value */

export const WINDOW = 600;
export const MOST_LINKS = 128;
const GAP = 5; // seconds without a frame before the line is broken

/** @param {Value | undefined} value */
const known = (value) => value ?? null;

/** @param {(Value | undefined)[]} values */
export function mean(values) {
  const there = values.filter((value) => value !== null && value !== undefined);
  const total = sum(there);
  return total === null ? null : total / there.length;
}

export class History {
  constructor() {
    /** @type {number[]} */
    this.at = [];
    /** @type {Map<string, Value[]>} `wire`, `effective`, `peak`, `rank 3`, `0 → 1` */
    this.series = new Map();
    /** @type {string[]} a letter for each rank (rank_states.js) */
    this.states = [];
    this.version = 0;
  }

  /**
   * Python's columns (allranks_widgets/_history.py) in place of what is here.
   * @param {{at: number[], wire: Value[], peak: Value[], ranks: Value[][], link_names: string[], links: Value[][],
   *   states?: string[]}} past
   */
  seed(past) {
    this.at = [];
    this.series = new Map();
    this.states = [];
    this.version++;
    past.at.forEach((at, i) => {
      /** @type {Map<string, Value>} */
      const row = new Map();
      past.ranks.forEach((column, rank) => row.set(`rank ${rank}`, known(column[i])));
      past.link_names.forEach((name, link) => row.set(name, known(past.links[link][i])));
      row.set("wire", known(past.wire[i]));
      row.set("peak", known(past.peak[i]));
      row.set("effective", mean(past.ranks.map((column) => column[i])));
      this.#put(at, row, past.states?.[i] ?? "");
    });
  }

  /** @param {Snapshot} snapshot one of a world that has ended holds what was before, and adds nothing, as in Python */
  add(snapshot) {
    const newest = this.at[this.at.length - 1];
    if (newest !== undefined && snapshot.held && snapshot.held - newest >= 1) this.#hold(Math.floor(snapshot.held));
    if (snapshot.state === "down") return;
    const at = snapshot.at ?? 0;
    const links = snapshot.links ?? [];
    /** @type {Map<string, Value>} */
    const row = new Map();
    for (const rank of snapshot.ranks) row.set(`rank ${rank.rank}`, known(rank.effective));
    if (links.length <= MOST_LINKS)
      for (const { link, rate } of links) row.set(`${link.source} → ${link.target}`, known(rate));
    const wire = sum(links.map((view) => view.rate));
    row.set("wire", wire === null ? null : wire / Math.max(1, snapshot.ranks.length));
    row.set("peak", known(snapshot.peak));
    row.set("effective", mean(snapshot.ranks.map((rank) => rank.effective)));
    this.#put(at, row, lettersOf(snapshot));
  }

  /** @param {number} until nothing changed: the last row holds up to then */
  #hold(until) {
    const i = this.at.length - 1;
    const row = new Map([...this.series].map(([name, values]) => [name, values[i]]));
    const states = this.states[i];
    for (let at = Math.max(this.at[i] + 1, until - WINDOW); at <= until; at++) this.#put(at, row, states);
  }

  /**
   * @param {number} at
   * @param {Map<string, Value>} row
   * @param {string} states
   */
  #put(at, row, states) {
    this.version++;
    const second = Math.floor(at);
    const last = this.at[this.at.length - 1];
    if (last !== undefined && second < last) return;
    if (second !== last) {
      if (last !== undefined && second - last > GAP) this.#push(last + 1, new Map(), "");
      this.#push(second, row, states);
    } else {
      const i = this.at.length - 1;
      this.states[i] = states;
      for (const [name, value] of row) this.#column(name)[i] = value;
    }
  }

  /**
   * @param {number} second
   * @param {Map<string, Value>} row
   * @param {string} states
   */
  #push(second, row, states) {
    for (const name of row.keys()) this.#column(name);
    this.at.push(second);
    this.states.push(states);
    for (const [name, values] of this.series) values.push(row.get(name) ?? null);
    while (this.at[0] < second - WINDOW) {
      this.at.shift();
      this.states.shift();
      for (const values of this.series.values()) values.shift();
    }
  }

  /** @param {string} name */
  #column(name) {
    let column = this.series.get(name);
    if (!column) this.series.set(name, (column = new Array(this.at.length).fill(null)));
    return column;
  }

  /** @param {string[]} names @returns {(Value[] | number[])[]} times, then a column for each name */
  columns(names) {
    return [this.at, ...names.map((name) => this.series.get(name) ?? new Array(this.at.length).fill(null))];
  }
}
