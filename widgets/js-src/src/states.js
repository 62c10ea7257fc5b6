// What each rank did in each of the last seconds: a row for each rank, a column for each second.

import { h, icon, mark, say } from "./dom.js";
import { LOOKS, STATES, fieldOf, gridOf, runsOf } from "./rank_states.js";
import { Tooltip } from "./tooltip.js";
import * as units from "./units.js";
import { MEANINGS } from "./words.js";

/** @typedef {import("./store.js").Store} Store */

const HEIGHT = 196; // pixels of the rows that are seen at once
const LOW = 96; // the same where height is scarce
const NAMES = 34; // pixels left of the rows, for the numbers of ranks
/** @type {Record<string, [number, number]>} by key: how many ranks and seconds further */
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const LETTER = 9; // pixels: least width and height of a piece that gets its letter

export class States {
  /**
   * @param {HTMLElement} root
   * @param {Store} store
   * @param {{low: boolean}} how `low` where height is scarce
   */
  constructor(root, store, { low }) {
    this.store = store;
    this.height = low ? LOW : HEIGHT;
    /** @type {ReturnType<typeof gridOf>} what is drawn */
    this.grid = { at: [], rows: [] };
    this.field = fieldOf(1, 1, 1);
    /** @type {{rank: number, column: number} | null} the field that the arrow keys have chosen */
    this.chosen = null;
    this.tooltip = new Tooltip(root);
    this.canvas = h("canvas.states-canvas", {
      tabindex: 0, role: "img",
      onpointermove: (/** @type {PointerEvent} */ event) => this.#point(event),
      onpointerleave: () => this.tooltip.hide(),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.#key(event),
      onblur: () => this.#choose(null),
    });
    this.scroll = h("div.states-scroll", { style: `max-height:${this.height}px` }, this.canvas);
    this.first = h("span");
    this.last = h("span");
    this.legend = h("div.legend.states-legend");
    const times = h("div.states-times", { "aria-hidden": "true" }, this.first, this.last);
    this.node = h("div.states-grid", {}, this.scroll, times, this.legend);
  }

  /** @param {number} width in pixels */
  draw(width) {
    const { history } = this.store;
    const ranks = Math.max(1, ...history.states.slice(-1).map((letters) => letters.length));
    this.field = fieldOf(ranks, width - NAMES - 16, this.height); // beside the bar for scrolling
    this.grid = gridOf(history, this.field.seconds);
    const { at, rows } = this.grid;
    const seen = new Set(rows.join("").replaceAll(" ", ""));
    const what = `states of ${units.counted(rows.length, "rank")} over ${units.seconds(at.length)}`;
    const which = [...seen].map((letter) => STATES.get(letter)).join(", ") || "nothing is known yet";
    mark(this.canvas, "aria-label", `${what}: ${which}. Arrow keys read a second of a rank.`);
    say(this.first, at.length ? clock(at[0]) : "");
    say(this.last, at.length ? clock(at[at.length - 1]) : "");
    this.#say(seen);
    this.#paint(width);
    this.tooltip.update();
  }

  /** @param {Set<string>} seen letters of the states that are drawn */
  #say(seen) {
    const letters = Object.keys(LOOKS).filter((letter) => seen.has(letter));
    const key = letters.join("");
    if (this.legend.dataset.key === key) return;
    this.legend.dataset.key = key;
    this.legend.replaceChildren(...letters.map((letter) => {
      const state = STATES.get(letter) ?? "";
      const [colour, pattern] = LOOKS[letter];
      const style = `--arw-sample:var(--arw-${colour})`;
      const sample = h("span.states-sample", { "data-pattern": pattern, style, "aria-hidden": "true" }, letter);
      return h("span.states-name", { title: MEANINGS[state] ?? null }, sample, icon(state), state);
    }));
  }

  /** @param {number} width */
  #paint(width) {
    const { wide, high } = this.field;
    const { at, rows } = this.grid;
    const [w, height] = [Math.min(width, NAMES + at.length * wide), Math.max(1, rows.length) * high];
    const sharp = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(w * sharp);
    this.canvas.height = Math.round(height * sharp);
    this.canvas.style.width = `${w}px`;
    this.canvas.style.height = `${height}px`;
    const context = /** @type {CanvasRenderingContext2D | null} */ (this.canvas.getContext("2d"));
    if (!context) return;
    context.scale(sharp, sharp);
    const style = getComputedStyle(this.node);
    const colour = (/** @type {string} */ name) => style.getPropertyValue(`--arw-${name}`).trim();
    context.font = `10px ${style.fontFamily}`;
    context.textBaseline = "middle";
    const every = Math.max(1, Math.ceil(12 / high)); // rows from one number to the next
    rows.forEach((row, rank) => {
      const y = rank * high;
      if (rank % every === 0 && (rank + every <= rows.length || rank === 0)) {
        context.textAlign = "right";
        context.fillStyle = colour("muted");
        context.fillText(String(rank), NAMES - 6, y + Math.min(height - y, every * high) / 2);
      }
      for (const { start, length, letter } of runsOf(row)) {
        const [name, pattern] = LOOKS[letter] ?? LOOKS.s;
        const box = { x: NAMES + start * wide, y, w: length * wide, h: Math.max(1, high - (high > 4 ? 1 : 0)) };
        context.fillStyle = colour(name);
        fill(context, box, pattern);
        if (high >= LETTER + 1 && box.w >= LETTER) this.#letter(context, box, letter, colour);
      }
    });
    if (!this.chosen) return;
    context.strokeStyle = colour("fg");
    context.strokeRect(NAMES + this.chosen.column * wide - 0.5, this.chosen.rank * high - 0.5, wide + 1, high + 1);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {{x: number, y: number, w: number, h: number}} box
   * @param {string} letter
   * @param {(name: string) => string} colour
   */
  #letter(context, box, letter, colour) {
    context.fillStyle = getComputedStyle(this.node.closest(".arw-root") ?? this.node).backgroundColor;
    context.fillRect(box.x, box.y, LETTER, box.h);
    context.textAlign = "center";
    context.fillStyle = colour("fg");
    context.fillText(letter, box.x + LETTER / 2, box.y + box.h / 2 + 0.5);
  }

  /** @param {PointerEvent} event */
  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    const rank = Math.floor((event.clientY - box.top) / this.field.high);
    const column = Math.floor((event.clientX - box.left - NAMES) / this.field.wide);
    const time = this.grid.at[column];
    if (time === undefined || !this.grid.rows[rank]) return this.tooltip.hide();
    this.tooltip.show(this.canvas, () => this.#words(rank, time), { x: event.clientX, y: event.clientY });
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const { at, rows } = this.grid;
    const move = MOVES[event.key];
    if (!move || !rows.length) return;
    event.preventDefault();
    if (!this.chosen) return this.#choose({ rank: 0, column: at.length - 1 });
    const within = (/** @type {number} */ value, /** @type {number} */ size) => Math.max(0, Math.min(size - 1, value));
    const { rank, column } = this.chosen;
    this.#choose({ rank: within(rank + move[0], rows.length), column: within(column + move[1], at.length) });
  }

  /** @param {{rank: number, column: number} | null} field */
  #choose(field) {
    this.chosen = field;
    this.#paint(this.canvas.clientWidth || NAMES);
    if (!field) return this.tooltip.hide();
    const [box, time] = [this.canvas.getBoundingClientRect(), this.grid.at[field.column]];
    const { wide, high } = this.field;
    const at = { x: box.left + NAMES + field.column * wide, y: box.top + (field.rank + 1) * high };
    this.tooltip.show(this.canvas, () => this.#words(field.rank, time), at);
  }

  /** @param {number} rank @param {number} time Unix seconds */
  #words(rank, time) {
    const letter = this.grid.rows[rank]?.[time - this.grid.at[0]] ?? " ";
    return [`rank ${rank} · ${clock(time)}`, letter === " " ? "nothing is known" : (STATES.get(letter) ?? "")];
  }
}

/** @param {number} time Unix seconds */
const clock = (time) => new Date(time * 1000).toLocaleTimeString();

/**
 * @param {CanvasRenderingContext2D} context
 * @param {{x: number, y: number, w: number, h: number}} box
 * @param {import("./rank_states.js").Pattern} pattern
 */
function fill(context, { x, y, w, h: high }, pattern) {
  const half = Math.max(1, Math.round(high / 2));
  if (pattern === "full") context.fillRect(x, y, w, high);
  else if (pattern === "half") context.fillRect(x, y + high - half, w, half);
  else if (pattern === "line") context.fillRect(x, y + high - 1, w, 1);
  else
    for (let at = 0, odd = false; at < w; at += 2, odd = !odd) {
      const wide = Math.min(2, w - at);
      if (pattern === "stripes" && !odd) context.fillRect(x + at, y, wide, high);
      else if (pattern === "checks") context.fillRect(x + at, odd ? y : y + half, wide, odd ? half : high - half);
    }
}
