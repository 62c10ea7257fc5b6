// What the ranks said, cell by cell, as rows: a line of text or one figure each. Pure, no page.
//
// Rows are two arrays side by side, the text and the segment it is part of, since a cell can have hundreds of thousands.

import * as units from "./units.js";

/** @typedef {import("./types.js").Item} Item */

/**
 * Rows that the same ranks put out alike in one go.
 * @typedef {{kind: "text" | "error" | "rich" | "note", ranks: number[], stream: string, differs: boolean,
 *   data?: Record<string, string>, id?: string, height: number}} Segment
 */

const MOST_ROWS = 500_000;
const MOST_CHARS = 80_000_000;
const MOST_CELLS = 50;
const CHUNK = 50_000; // rows dropped at once, since it moves all others
const FIGURE = 160; // pixels, until a figure has been measured

/** The output of one cell. */
export class Cell {
  /** @param {number} n */
  constructor(n) {
    this.n = n;
    /** @type {number | null} */
    this.count = null; // its number in the notebook's margin, where that is known
    this.code = "";
    /** @type {number[]} */
    this.ranks = [];
    /** @type {string[]} */
    this.texts = [];
    /** @type {Segment[]} */
    this.segments = [];
    /** @type {{row: number, ranks: number[], ename: string, evalue: string}[]} */
    this.errors = [];
    /** @type {Map<number, string>} unfinished lines */
    this.live = new Map();
    this.lines = 0; // folded lines that ranks printed, those no longer kept included
    this.said = 0; // lines of all ranks
    /** @type {Set<number> | null} */
    this.printers = new Set(); // ranks that printed lines; null if some of their lines are missing
    this.dropped = 0; // rows no longer kept
    this.chars = 0;
    this.done = false;
    /** @type {boolean | null} */
    this.ok = null;
    /** @type {number | null} */
    this.seconds = null;
    this.rewritten = 0; // counts changes of rows that were there before
    /** @type {Segment | null} whose last row has no line end yet */
    this.open = null;
    /** @type {Set<number>} ranks whose output goes when they next put out something */
    this.clearing = new Set();
  }

  get label() {
    return this.count ?? this.n;
  }

  get rows() {
    return this.texts.length;
  }
}

/** The output of the last cells, bounded. */
export class Output {
  constructor() {
    /** @type {Map<number, Cell>} */
    this.cells = new Map();
    this.version = 0;
    this.forgotten = 0; // cells no longer kept
  }

  /** @returns {Cell | null} */
  get last() {
    let last = null;
    for (const cell of this.cells.values()) last = cell;
    return last;
  }

  /**
   * The cell that a rank runs: the latest of those that have not ended.
   * @param {number} rank
   * @returns {Cell | null}
   */
  running(rank) {
    let running = null;
    for (const cell of this.cells.values()) if (!cell.done && cell.ranks.includes(rank)) running = cell;
    return running;
  }

  /** @param {Item[]} items */
  take(items) {
    for (const item of items) this.#take(item);
    this.#bound();
    this.version++;
  }

  /** @param {Item} item */
  #take(item) {
    const cell = this.#cell(item.cell);
    const ranks = item.ranks ?? [];
    switch (item.kind) {
      case "begin":
        cell.ranks = ranks;
        cell.count = item.count ?? null;
        cell.code = item.code ?? "";
        return;
      case "end":
        cell.done = true;
        cell.ok = item.ok ?? null;
        cell.seconds = item.seconds ?? null;
        cell.live.clear();
        return;
      case "live":
        cell.live = new Map(Object.entries(item.lines ?? {}).map(([rank, text]) => [Number(rank), String(text)]));
        return;
      case "clear":
        if (item.wait) for (const rank of ranks) cell.clearing.add(rank);
        else forget(cell, new Set(ranks));
        return;
      case "update":
        this.#update(item);
        return;
      case "dropped":
        cell.lines += Number(item.lines);
        cell.said += Number(item.said);
        cell.printers = null;
        note(cell, cell.ranks, `${item.lines} earlier lines are no longer kept`);
        return;
    }
    const due = ranks.filter((rank) => cell.clearing.has(rank));
    if (due.length) {
      for (const rank of due) cell.clearing.delete(rank);
      forget(cell, new Set(due));
    }
    if (item.kind === "text") text(cell, ranks, item.stream ?? "stdout", item.text ?? "");
    else if (item.kind === "cut") note(cell, ranks, item.text ?? "");
    else if (item.kind === "error") error(cell, item);
    else if (item.kind === "display" || item.kind === "result") rich(cell, item);
  }

  /** @param {number} n */
  #cell(n) {
    let cell = this.cells.get(n);
    if (!cell) {
      cell = new Cell(n);
      this.cells.set(n, cell);
    }
    return cell;
  }

  /** @param {Item} item a display of any cell shows something else from now on */
  #update(item) {
    const ranks = new Set(item.ranks);
    for (const cell of this.cells.values())
      for (let row = 0; row < cell.segments.length; row++) {
        const segment = cell.segments[row];
        if (segment.id === item.display_id && segment.id && segment.ranks.some((rank) => ranks.has(rank))) {
          segment.data = item.data;
          cell.texts[row] = item.data?.["text/plain"] ?? "";
          cell.rewritten++;
        }
      }
  }

  #bound() {
    while (this.cells.size > MOST_CELLS) this.#forgetFirst();
    const totals = () => {
      let [rows, chars] = [0, 0];
      for (const cell of this.cells.values()) [rows, chars] = [rows + cell.rows, chars + cell.chars];
      return rows > MOST_ROWS || chars > MOST_CHARS;
    };
    while (totals()) {
      const first = this.cells.values().next().value;
      if (this.cells.size > 1) this.#forgetFirst();
      else if (first && first.rows > 1) dropRows(first, Math.min(CHUNK, first.rows - 1));
      else return;
    }
  }

  #forgetFirst() {
    const first = this.cells.keys().next().value;
    if (first !== undefined) this.cells.delete(first);
    this.forgotten++;
  }
}

/**
 * @param {Cell} cell
 * @param {Segment["kind"]} kind
 * @param {number[]} ranks
 * @returns {Segment}
 */
function segment(cell, kind, ranks, stream = "stdout") {
  const differs = cell.ranks.length > 0 && ranks.length < cell.ranks.length;
  return { kind, ranks, stream, differs, height: 0 };
}

/**
 * @param {Cell} cell
 * @param {string} line
 * @param {Segment} of
 */
function push(cell, line, of) {
  cell.texts.push(line);
  cell.segments.push(of);
  cell.chars += line.length;
}

/**
 * Count lines that ranks printed; a note is of allranks.
 * @param {Cell} cell
 * @param {Segment} of
 * @param {number} lines
 */
function count(cell, of, lines) {
  if (of.stream === "note") return;
  cell.lines += lines;
  cell.said += lines * of.ranks.length;
  if (lines) for (const rank of of.ranks) cell.printers?.add(rank);
}

/** @param {Cell} cell @returns {string} how many lines there are, and of how many they are folded */
export function counted(cell) {
  const { lines, said, printers } = cell;
  if (!said) return "no output";
  const shown = `${units.count(lines)} ${lines === 1 ? "line" : "lines"}`;
  if (said === lines) return shown;
  return `${shown} · folded from ${units.count(said)} lines${printers ? ` that ${printers.size} ranks printed` : ""}`;
}

/** @param {string} line what a carriage return left of it */
function returned(line) {
  if (!line.includes("\r")) return line;
  const parts = line.split("\r");
  return parts.findLast((part) => part !== "") ?? "";
}

/**
 * @param {Cell} cell
 * @param {number[]} ranks
 * @param {string} stream
 * @param {string} said
 */
function text(cell, ranks, stream, said) {
  if (!said) return;
  const lines = said.split("\n");
  const finished = lines[lines.length - 1] === "";
  if (finished) lines.pop();
  const open = cell.open;
  const goesOn = open && open.stream === stream && same(open.ranks, ranks);
  const of = goesOn ? open : segment(cell, "text", ranks, stream);
  let from = 0;
  if (goesOn) {
    const row = cell.rows - 1;
    const whole = returned(cell.texts[row] + lines[0]);
    cell.chars += whole.length - cell.texts[row].length;
    cell.texts[row] = whole;
    cell.rewritten++;
    from = 1;
  }
  for (let i = from; i < lines.length; i++) push(cell, returned(lines[i]), of);
  count(cell, of, lines.length - from);
  cell.open = finished ? null : of;
}

/**
 * @param {Cell} cell
 * @param {number[]} ranks
 * @param {string} said
 */
function note(cell, ranks, said) {
  cell.open = null;
  push(cell, said, segment(cell, "note", ranks));
}

/**
 * @param {Cell} cell
 * @param {Item} item
 */
function error(cell, item) {
  cell.open = null;
  const ranks = item.ranks ?? [];
  const of = segment(cell, "error", ranks, "stderr");
  const ename = item.ename ?? "error";
  const evalue = item.evalue ?? "";
  cell.errors.push({ row: cell.rows, ranks, ename, evalue });
  const lines = (item.traceback ?? []).join("\n").split("\n");
  if (lines.length === 1 && !lines[0]) lines[0] = `${ename}: ${evalue}`;
  for (const line of lines) push(cell, line, of);
}

/**
 * @param {Cell} cell
 * @param {Item} item
 */
function rich(cell, item) {
  cell.open = null;
  const data = item.data ?? {};
  const said = data["text/plain"] ?? "";
  if (isText(data)) {
    const of = segment(cell, "text", item.ranks ?? []);
    of.id = item.display_id;
    const lines = said.split("\n");
    for (const line of lines) push(cell, line, of);
    count(cell, of, lines.length);
    return;
  }
  const of = segment(cell, "rich", item.ranks ?? []);
  of.data = data;
  of.id = item.display_id;
  of.height = FIGURE;
  push(cell, said, of);
}

/** @param {Record<string, string>} data */
function isText(data) {
  return !Object.keys(data).some((mime) => mime.startsWith("image/") || mime === "text/html");
}

/**
 * Take away what `ranks` have put out in the cell so far.
 * @param {Cell} cell
 * @param {Set<number>} ranks
 */
function forget(cell, ranks) {
  /** @type {Map<Segment, Segment | null>} */
  const now = new Map();
  const [texts, segments] = [cell.texts, cell.segments];
  const moved = new Map();
  cell.texts = [];
  cell.segments = [];
  cell.chars = cell.lines = cell.said = cell.dropped = 0;
  cell.printers = new Set();
  cell.open = null;
  for (let row = 0; row < texts.length; row++) {
    const of = segments[row];
    let left = now.get(of);
    if (left === undefined) {
      const others = of.ranks.filter((rank) => !ranks.has(rank));
      left = others.length ? { ...of, ranks: others, differs: others.length < cell.ranks.length } : null;
      now.set(of, left);
    }
    if (!left) continue;
    moved.set(row, cell.rows);
    push(cell, texts[row], left);
    if (left.kind === "text") count(cell, left, 1);
  }
  cell.errors = cell.errors.flatMap((one) => (moved.has(one.row) ? [{ ...one, row: moved.get(one.row) }] : []));
  cell.rewritten++;
}

/**
 * @param {Cell} cell
 * @param {number} n how many of the first rows
 */
function dropRows(cell, n) {
  for (let row = 0; row < n; row++) cell.chars -= cell.texts[row].length;
  cell.texts = cell.texts.slice(n);
  cell.segments = cell.segments.slice(n);
  cell.errors = cell.errors.flatMap((one) => (one.row >= n ? [{ ...one, row: one.row - n }] : []));
  cell.dropped += n;
  cell.rewritten++;
}

/**
 * @param {readonly number[]} a
 * @param {readonly number[]} b
 */
export function same(a, b) {
  return a === b || (a.length === b.length && a.every((value, i) => value === b[i]));
}

/**
 * Rows of a cell side by side, one column for each rank: what ranks say alike stands on one line in all of them.
 * Grows with the cell.
 */
export class Columns {
  /** @param {Cell} cell */
  constructor(cell) {
    this.cell = cell;
    this.rewritten = cell.rewritten;
    /** @type {Map<number, number[]>} for each rank, line to row + 1 */
    this.of = new Map(cell.ranks.map((rank) => [rank, []]));
    /** @type {number[]} row to line */
    this.lines = [];
    this.length = 0;
    this.upTo = 0;
    /** @type {Map<number, number>} line to the row of a figure on it */
    this.figures = new Map();
  }

  /** Take in the rows that have come. */
  grow() {
    const { segments } = this.cell;
    for (; this.upTo < segments.length; this.upTo++) {
      const of = segments[this.upTo];
      let line = 0;
      for (const rank of of.ranks) line = Math.max(line, this.#column(rank).length);
      for (const rank of of.ranks) this.#column(rank)[line] = this.upTo + 1;
      if (of.kind === "rich") this.figures.set(line, this.upTo);
      this.lines.push(line);
      this.length = Math.max(this.length, line + 1);
    }
  }

  /** @param {number} row @returns {Set<string>} what other ranks have on the same line */
  beside(row) {
    const { texts } = this.cell;
    const rows = [...this.of.values()].map((column) => (column[this.lines[row]] ?? 0) - 1);
    return new Set(rows.filter((one) => one >= 0 && one !== row).map((one) => texts[one]));
  }

  /** @param {number} rank */
  #column(rank) {
    let column = this.of.get(rank);
    if (!column) this.of.set(rank, (column = []));
    return column;
  }
}

/**
 * The rows of a cell that `rank` put out, or that all did if it is null. Grows with the cell.
 */
export class Chosen {
  /**
   * @param {Cell} cell
   * @param {number | null} rank
   */
  constructor(cell, rank) {
    this.cell = cell;
    this.rank = rank;
    this.rewritten = cell.rewritten;
    /** @type {number[] | null} null for all rows */
    this.rows = rank === null ? null : [];
    /** @type {number[]} positions of figures */
    this.figures = [];
    this.upTo = 0;
  }

  get length() {
    return this.rows ? this.rows.length : this.upTo;
  }

  /** @param {number} position the row there */
  row(position) {
    return this.rows ? this.rows[position] : position;
  }

  /** @param {number} row its position, or where it would be */
  position(row) {
    if (!this.rows) return row;
    let [low, high] = [0, this.rows.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.rows[middle] < row) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  grow() {
    const { segments } = this.cell;
    for (; this.upTo < segments.length; this.upTo++) {
      const of = segments[this.upTo];
      if (this.rank !== null && !of.ranks.includes(this.rank)) continue;
      if (of.kind === "rich") this.figures.push(this.rows ? this.rows.length : this.upTo);
      if (this.rows) this.rows.push(this.upTo);
    }
  }
}

const WORDS = /[\w.]+|\s+|[^\w\s]/g;

/**
 * A line in pieces, each with whether it differs from what `others` have in the same place, as `differing_lines.py` does it.
 * Null where all of the line differs.
 * @param {string} text
 * @param {string[]} others
 * @returns {[string, boolean][] | null}
 */
export function differing(text, others) {
  const own = text.match(WORDS) ?? [];
  const all = others.map((one) => one.match(WORDS) ?? []);
  const least = Math.min(own.length, ...all.map((one) => one.length));
  const alike = (/** @type {number} */ at) => all.every((one) => one.at(at) === own.at(at));
  let [head, tail] = [0, 0];
  while (head < least && alike(head)) head++;
  while (tail < least - head && alike(-1 - tail)) tail++;
  const inStep = all.every((one) => one.length === own.length);
  const differs = own.map((word, at) => at >= head && at < own.length - tail && word.trim() !== "" && !(inStep && alike(at)));
  if (!own.some((word, at) => !differs[at] && /\w/.test(word))) return null;
  /** @type {[string, boolean][]} */
  const pieces = [];
  own.forEach((word, at) => {
    const last = pieces[pieces.length - 1];
    if (last?.[1] === differs[at]) last[0] += word;
    else pieces.push([word, differs[at]]);
  });
  return pieces;
}

/**
 * The next row from which on ranks differ, after the difference `row` is part of; wraps around. -1 if there is none.
 * @param {Cell} cell
 * @param {number} row -1 to begin at the start
 */
export function nextDifference(cell, row) {
  const { segments } = cell;
  const total = segments.length;
  let inside = row >= 0 && segments[row]?.differs;
  for (let step = 1; step <= total; step++) {
    const at = (row + step) % total;
    if (at === 0) inside = false;
    if (segments[at].differs && !inside) return at;
    inside = segments[at].differs;
  }
  return row >= 0 && segments[row]?.differs ? row : -1;
}
