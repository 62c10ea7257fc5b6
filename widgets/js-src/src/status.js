// What each rank does, as a table.

import { h, hide, icon, mark, say, setIcon } from "./dom.js";
import { collective, counts, missing, stateOf } from "./snapshot.js";
import * as units from "./units.js";
import { MEANINGS } from "./words.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./types.js").RankView} RankView */

const TURNS = 25; // frames in which the rows that are not in view are drawn once: at 5 Hz, every five seconds
const CHARACTER = 7.8; // pixels of the column "doing", at the most
const LATER = 1000; // ms without a frame until all rows are drawn
const HEADS = ["rank", "state", "doing", "for", "CPU", "memory", "MLX active / peak"];

export class Status {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.body = h("tbody");
    const head = h("tr", {}, ...HEADS.map((name, i) => h(i > 2 ? "th.figure" : "th", { scope: "col" }, name)));
    const table = h("table.table.status", {}, h("thead", {}, head), this.body);
    this.scroll = h("div.table-scroll", { tabindex: 0, role: "region", "aria-label": "state of each rank", onscroll: () => this.#scrolled() }, table);
    this.below = h("div.muted.below", { hidden: true });
    this.turn = 0;
    this.later = 0;
    this.seen = { first: 0, last: Infinity }; // rows in view
    this.node = h("div", {}, this.scroll, this.below);
    this.room = 0; // characters of a line of the column "doing"
    const sized = new ResizeObserver(() => {
      const room = Math.floor(((this.body.rows[0]?.cells[2]?.clientWidth ?? 0) - 14) / CHARACTER);
      if (room !== this.room) for (const row of [...this.body.rows]) mark(row, "data-tall", "false");
      const other = room !== this.room;
      this.room = room;
      if (other) this.update();
      this.#count();
    });
    for (const node of [this.scroll, table]) sized.observe(node);
    /** @type {((rank: RankView) => void)[]} */
    this.rows = [];
    /** @type {Set<number>} ranks that others wait for */
    this.late = new Set();
  }

  update() {
    const { snapshot } = this.store;
    const ranks = snapshot?.ranks ?? [];
    this.late = new Set(snapshot ? missing(snapshot)?.ranks.map((rank) => rank.rank) : []);
    while (this.rows.length > ranks.length) {
      this.rows.pop();
      this.body.deleteRow(-1);
    }
    clearTimeout(this.later);
    const old = this.rows.length;
    while (this.rows.length < ranks.length) this.rows.push(this.#row());
    const { first, last } = this.seen;
    this.turn = (this.turn + 1) % TURNS;
    const due = (/** @type {number} */ i) => (i >= first && i <= last) || i >= old || i % TURNS === this.turn;
    ranks.forEach((rank, i) => due(i) && this.rows[i](rank));
    if (last - first + 1 < ranks.length) this.later = window.setTimeout(() => this.#drawAll(), LATER);
  }

  /** Draw the rows that are not in view, too. */
  #drawAll() {
    this.store.snapshot?.ranks.forEach((rank, i) => this.rows[i]?.(rank));
  }

  #scrolled() {
    this.#count();
    this.#drawAll();
  }

  /** Say which ranks are in view, where not all are. */
  #count() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroll;
    const ranks = this.store.snapshot?.ranks ?? [];
    const out = scrollHeight > clientHeight + 1 && ranks.length > 1;
    hide(this.below, !out);
    mark(this.scroll, "data-more", String(out));
    this.seen = { first: 0, last: Infinity };
    if (!out) return;
    // A row is in view if its middle is; rows may be of two heights.
    const head = this.body.offsetTop;
    const middles = [...this.body.rows].map((row) => row.offsetTop + row.offsetHeight / 2);
    const first = Math.max(0, middles.findIndex((middle) => middle > scrollTop + head));
    const last = Math.max(first, middles.findLastIndex((middle) => middle < scrollTop + clientHeight));
    this.seen = { first: first - 1, last: last + 1 };
    say(this.below, `${units.rankLabel(ranks.slice(first, last + 1).map((rank) => rank.rank))} of ${ranks.length}: scroll for the others`);
  }

  #row() {
    const [sign, word] = [icon("starting"), h("span")];
    let number = 0;
    const choose = h("button.link", { type: "button", onclick: () => this.store.select(number) });
    const state = h("div.cell", {}, sign, word);
    const doing = h("div.doing-text");
    const [time, cpu, memory, mlx] = Array.from({ length: 4 }, () => h("div.cell"));
    const figures = [time, cpu, memory, mlx].map((box) => h("td.figure", {}, box));
    const row = h("tr", {}, h("th.rank-cell", { scope: "row" }, choose), h("td.state-cell", {}, state), h("td.doing-cell", {}, doing), ...figures);
    this.body.append(row);
    return (/** @type {RankView} */ rank) => {
      number = rank.rank;
      const now = stateOf(rank, this.store.behind);
      mark(row, "data-state", now);
      mark(row, "data-late", String(this.late.has(number)));
      mark(row, "data-selected", String(this.store.selected === number));
      say(choose, String(number));
      mark(choose, "aria-label", `rank ${number} on ${rank.host}: show its output only`);
      mark(choose, "aria-pressed", String(this.store.selected === number));
      setIcon(sign, this.late.has(number) && now !== "failed" ? "warning" : now);
      say(word, now);
      mark(state, "title", MEANINGS[now] ?? "");
      const what = told(rank, this.store.behind);
      say(doing, what);
      mark(doing, "title", what);
      // A row that has once been of two lines stays so: else what is below would go up and down with every frame.
      if (this.room && row.dataset.tall !== "true") mark(row, "data-tall", String(what.length > this.room));
      say(time, rank.since === undefined ? units.UNKNOWN : units.lasted(rank.since + this.store.behind));
      say(cpu, units.percent(rank.cpu));
      say(memory, units.bytes(rank.rss));
      const none = rank.mlx_active === undefined && rank.mlx_peak === undefined;
      mark(mlx, "title", none ? "" : `MLX: ${units.bytes(rank.mlx_active)} in use, ${units.bytes(rank.mlx_cache)} kept for reuse, ${units.bytes(rank.mlx_peak)} at the most`);
      say(mlx, none ? units.UNKNOWN : `${units.bytes(rank.mlx_active)} / ${units.bytes(rank.mlx_peak)}`);
    };
  }
}

/**
 * @param {RankView} rank
 * @param {number} behind seconds since the snapshot was made
 */
function told(rank, behind) {
  const compiles = rank.compiler && `compiling with ${rank.compiler} for ${Math.floor((rank.compiling ?? 0) + behind)} s`;
  return [compiles, does(rank)].filter(Boolean).join(" · ");
}

/** @param {RankView} rank */
function does(rank) {
  if (rank.cause && ["dead", "failed", "idle"].includes(rank.state ?? "")) return rank.cause;
  const line = rank.line ? `line ${rank.line}${rank.source ? `: ${rank.source.trim()}` : ""}` : "";
  if (rank.state === "waiting" && rank.collective) return [`in ${collective(rank.collective)}`, line].join(" · ");
  if (rank.state === "debugging") return line || "debugging an error";
  if (counts(rank.state ?? "")) return line || "line unknown";
  return rank.collective ? `last: ${collective(rank.collective)}` : "";
}
