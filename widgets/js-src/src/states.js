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
const PATTERNED = 4; // pixels: least height of a row in which patterns can be told
const CLOCK = 70; // pixels of a time below the rows
const BAR = 16; // pixels right of the rows, for the bar that scrolls them

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
    /** @type {{rank: number, column: number} | null} the field that the arrow keys have chosen: what stands there moves on */
    this.chosen = null;
    this.tooltip = new Tooltip(root);
    // As it is when it is said: a second later, the next one stands there, and there may be fewer ranks.
    this.ofChosen = () => (this.chosen ? this.#words(this.chosen.rank, this.chosen.column) : []);
    this.canvas = h("canvas.states-canvas", {
      tabindex: 0, role: "group",
      onpointermove: (/** @type {PointerEvent} */ event) => this.#point(event),
      onpointerleave: () => this.tooltip.hide(),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.#key(event),
      onblur: () => this.#choose(null),
    });
    this.scroll = h("div.states-scroll", { style: `max-height:${this.height}px` }, this.canvas);
    this.first = h("span");
    this.last = h("span");
    this.legend = h("div.legend.states-legend");
    this.heard = h("div.away", { role: "status" }); // the field that was chosen, not what comes to stand there
    this.times = h("div.states-times", { "aria-hidden": "true" }, this.first, this.last);
    this.node = h("div.states-grid", {}, this.scroll, this.times, this.legend, this.heard);
  }

  /** @param {number} width in pixels */
  draw(width) {
    const { history } = this.store;
    const room = width - NAMES - BAR;
    this.grid = gridOf(history, fieldOf(1, room, this.height).seconds);
    const { at, rows } = this.grid;
    this.field = fieldOf(rows.length, room, this.height);
    const drawn = rows.join("");
    const letters = Object.keys(LOOKS).filter((letter) => drawn.includes(letter));
    const what = `states of ${units.counted(rows.length, "rank")} over ${units.seconds(at.length)}`;
    const which = letters.map((letter) => STATES.get(letter)).join(", ") || "nothing is known yet";
    mark(this.canvas, "aria-label", `${what}: ${which}. Arrow keys read a second of a rank.`);
    const long = at.length * this.field.wide;
    this.times.style.width = `${NAMES + Math.max(long, CLOCK) + BAR}px`;
    say(this.first, long >= 2 * CLOCK ? clock(at[0]) : "");
    say(this.last, at.length ? clock(at[at.length - 1]) : "");
    this.#say(letters);
    const { chosen } = this;
    if (chosen) this.chosen = rows.length ? { rank: Math.min(chosen.rank, rows.length - 1), column: Math.min(chosen.column, at.length - 1) } : null;
    this.#paint();
    if (this.tooltip.lines === this.ofChosen) this.#tell(); // its place may be another
    else this.tooltip.update();
  }

  /** @param {string[]} letters of the states that are drawn */
  #say(letters) {
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

  #paint() {
    const { wide, high } = this.field;
    const { at, rows } = this.grid;
    const [w, height] = [NAMES + at.length * wide, Math.max(1, rows.length) * high];
    const sharp = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(w * sharp);
    this.canvas.height = Math.round(height * sharp);
    this.canvas.style.width = `${w}px`;
    this.canvas.style.height = `${height}px`;
    const context = /** @type {CanvasRenderingContext2D | null} */ (this.canvas.getContext("2d"));
    if (!context) return;
    context.scale(sharp, sharp);
    context.imageSmoothingEnabled = false; // of patterns
    const style = getComputedStyle(this.node);
    const colour = (/** @type {string} */ name) => style.getPropertyValue(`--arw-${name}`).trim();
    const ground = getComputedStyle(this.node.closest(".arw-root") ?? this.node).backgroundColor;
    const tall = high > PATTERNED ? high - 1 : high; // a gap between rows
    /** @type {Map<string, string | CanvasPattern>} by letter */
    const fills = new Map();
    const fillOf = (/** @type {string} */ letter) => {
      const [name, pattern] = LOOKS[letter] ?? LOOKS.s;
      const made = fills.get(letter) ?? fill(context, colour(name), high < PATTERNED && pattern !== "line" ? "full" : pattern, high, tall);
      fills.set(letter, made);
      return made;
    };
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
        const [x, long] = [NAMES + start * wide, length * wide];
        context.fillStyle = fillOf(letter);
        context.fillRect(x, y, long, tall);
        if (high <= LETTER || long < LETTER) continue;
        context.fillStyle = ground;
        context.fillRect(x, y, LETTER, tall);
        context.textAlign = "center";
        context.fillStyle = colour("fg");
        context.fillText(letter, x + LETTER / 2, y + tall / 2 + 0.5);
      }
    });
    if (!this.chosen) return;
    context.strokeStyle = colour("fg");
    context.strokeRect(NAMES + this.chosen.column * wide - 0.5, this.chosen.rank * high - 0.5, wide + 1, high + 1);
  }

  /** @param {PointerEvent} event */
  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    const rank = Math.floor((event.clientY - box.top) / this.field.high);
    const column = Math.floor((event.clientX - box.left - NAMES) / this.field.wide);
    this.tooltip.show(this.canvas, () => this.#words(rank, column), { x: event.clientX, y: event.clientY });
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const { at, rows } = this.grid;
    const move = MOVES[event.key];
    if (!move || !rows.length) return;
    event.preventDefault();
    event.stopPropagation();
    if (!this.chosen) return this.#choose({ rank: 0, column: at.length - 1 });
    const within = (/** @type {number} */ value, /** @type {number} */ size) => Math.max(0, Math.min(size - 1, value));
    const { rank, column } = this.chosen;
    this.#choose({ rank: within(rank + move[0], rows.length), column: within(column + move[1], at.length) });
  }

  /** @param {{rank: number, column: number} | null} field */
  #choose(field) {
    this.chosen = field;
    this.#paint();
    if (!field) {
      say(this.heard, "");
      return this.tooltip.hide();
    }
    const [{ rank, column }, { high }] = [field, this.field];
    const { scrollTop, clientHeight } = this.scroll;
    const [top, bottom] = [rank * high, (rank + 1) * high];
    if (top < scrollTop || bottom > scrollTop + clientHeight) this.scroll.scrollTop = top < scrollTop ? top : bottom - clientHeight;
    say(this.heard, this.#words(rank, column).join(", "));
    this.#tell();
  }

  /** Say what stands in the chosen field, beside it. */
  #tell() {
    if (!this.chosen) return this.tooltip.hide();
    const { wide, high } = this.field;
    const box = this.canvas.getBoundingClientRect();
    const at = { x: box.left + NAMES + this.chosen.column * wide, y: box.top + (this.chosen.rank + 1) * high };
    this.tooltip.show(this.canvas, this.ofChosen, at);
  }

  /** @param {number} rank @param {number} column @returns {string[]} none where there is no such field */
  #words(rank, column) {
    const time = this.grid.at[column];
    const letter = this.grid.rows[rank]?.[column];
    if (time === undefined || letter === undefined) return [];
    return [`rank ${rank} · ${clock(time)}`, letter === " " ? "nothing is known" : (STATES.get(letter) ?? "")];
  }
}

/** @param {number} time Unix seconds */
const clock = (time) => new Date(time * 1000).toLocaleTimeString();

/**
 * What fills a row with a state: its colour, or a tile of its pattern.
 * @param {CanvasRenderingContext2D} context
 * @param {string} colour
 * @param {import("./rank_states.js").Pattern} pattern
 * @param {number} high pixels from one row to the next
 * @param {number} tall pixels of them that are drawn
 * @returns {string | CanvasPattern}
 */
function fill(context, colour, pattern, high, tall) {
  if (pattern === "full") return colour;
  const tile = h("canvas", { width: 4, height: high });
  const pen = /** @type {CanvasRenderingContext2D | null} */ (tile.getContext("2d"));
  if (!pen) return colour;
  const half = Math.max(1, Math.round(tall / 2));
  pen.fillStyle = colour;
  if (pattern === "half") pen.fillRect(0, tall - half, 4, half);
  else if (pattern === "line") pen.fillRect(0, tall - 1, 4, 1);
  else if (pattern === "stripes") pen.fillRect(0, 0, 2, tall);
  else {
    pen.fillRect(0, half, 2, tall - half);
    pen.fillRect(2, 0, 2, half);
  }
  return context.createPattern(tile, "repeat") ?? colour;
}
