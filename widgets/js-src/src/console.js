// The output of a cell: folded, in columns or by rank. Only the rows that are seen are drawn.

import { pieces, plain } from "./ansi.js";
import { choice, h, icon, mark, say } from "./dom.js";
import { Heights } from "./heights.js";
import { Chosen, Columns, counted, differing, nextDifference } from "./output.js";
import { progress } from "./progress.js";
import { showRich } from "./rich.js";
import * as units from "./units.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./output.js").Cell} Cell */

const LINE = 19; // pixels
const OVER = 12; // rows drawn above and below what is seen
const MOST_COLUMNS = 16;
const LONGEST = 5000; // characters of a line drawn
const HIGHEST = 304; // pixels of the list, unless it is drawn taller by hand
const LEAST = 72;
const MARGINS = 14; // above and below its lines

export class Console {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.mode = "folded";
    /** @type {number | null} null for the latest */
    this.wanted = null;
    /** @type {Cell | null} */
    this.cell = null;
    /** @type {Chosen | null} */
    this.chosen = null;
    /** @type {Columns | null} */
    this.columns = null;
    this.heights = new Heights(LINE);
    /** @type {Map<number, HTMLElement>} */
    this.drawn = new Map();
    this.stamp = "";
    this.following = true;
    this.difference = -1;
    this.query = "";
    /** @type {number[]} rows with what is searched */
    this.found = [];
    this.foundAt = -1;
    this.searchedTo = 0;
    this.version = -1;
    /** @type {import("./output.js").Output | null} */
    this.output = null;
    this.later = 0;
    this.key = "";

    this.cells = h("select.select", { "aria-label": "cell", onchange: () => this.#choose() });
    this.modes = choice("layout of the output", [["folded", "Folded"], ["columns", "Columns"], ["tabs", "Tabs"]], (mode) => this.#setMode(mode));
    this.search = h("input.search", {
      type: "search", placeholder: "Search", "aria-label": "search the output",
      oninput: () => this.#query(), onkeydown: (/** @type {KeyboardEvent} */ event) => this.#searchKey(event),
    });
    this.matches = h("span.matches", { role: "status" });
    this.next = h("button.button", { type: "button", onclick: () => this.#nextDifference() }, "Next difference");
    this.copy = h("button.button", { type: "button", onclick: () => this.#copy() }, "Copy");
    this.tabs = h("div.tabs", { role: "group", "aria-label": "rank" });
    this.only = h("button.button.chip", { type: "button", onclick: () => this.store.select(this.store.selected) });
    this.errors = h("div.errors", { "aria-label": "errors", role: "group" });
    this.space = h("div.space");
    this.heads = h("div.column-heads");
    this.list = h("div.list", { tabindex: 0, role: "region", "aria-label": "output", onscroll: () => this.#scrolled() }, this.heads, this.space);
    this.live = h("div.live", { tabindex: 0, role: "region", "aria-label": "unfinished lines" });
    this.counts = h("div.counts");
    this.node = h(
      "div.console", {},
      h("div.toolbar", {}, this.cells, this.modes.node, this.only, h("span.spring"), this.search, this.matches, this.next, this.copy),
      this.tabs, this.errors, this.list, this.live, this.counts,
    );
    this.modes.set(this.mode);
    // The list can be drawn taller, and has no height while its notebook is behind another.
    this.top = 0;
    this.height = 0; // that it was given here
    new ResizeObserver(() => {
      const { following, list } = this;
      if (!this.cell || !list.clientHeight) return;
      this.update(true);
      if (!following && list.scrollTop === 0) list.scrollTop = this.top; // JupyterLab hides cells that are not in view
    }).observe(this.list);
  }

  update(force = false) {
    const { output, selected } = this.store;
    const key = `${output.version} ${selected} ${this.wanted} ${this.mode}`;
    if (!force && key === this.key && this.output === output) return;
    this.key = key;
    // Scrolled away since the last drawing, of which the event has not come yet: the list must not jump back.
    if (!force && this.following && this.list.clientHeight && !this.#atEnd) this.following = false;
    if (this.version !== output.version || this.output !== output) this.#listCells();
    this.output = output;
    this.version = output.version;
    const cell = (this.wanted === null ? null : output.cells.get(this.wanted)) ?? output.last;
    const rank = this.mode === "columns" ? null : this.mode === "tabs" ? (selected ?? cell?.ranks[0] ?? null) : selected;
    if (cell !== this.cell || this.chosen?.rank !== rank || this.chosen?.rewritten !== cell?.rewritten) {
      const turned = cell === this.cell && this.chosen?.rank === rank;
      this.cell = cell;
      this.chosen = cell && new Chosen(cell, rank);
      this.columns = null;
      if (!turned) this.following = true;
      this.#clear();
      this.#query(true);
    }
    this.chosen?.grow();
    if (cell && this.mode === "columns") {
      this.columns ??= new Columns(cell);
      this.columns.grow();
    }
    this.#measure();
    this.space.style.height = `${this.heights.top(this.length)}px`;
    this.#grow();
    this.only.hidden = this.mode === "tabs" || selected === null;
    say(this.only, this.mode === "columns" ? `rank ${selected} selected ×` : `rank ${selected} only ×`);
    this.#heads();
    this.#tabs(rank);
    this.#errors();
    this.#live();
    this.#counts();
    if (this.query) this.#find();
    if (this.following) this.list.scrollTop = this.list.scrollHeight;
    this.#draw();
  }

  get length() {
    return this.mode === "columns" ? (this.columns?.length ?? 0) : (this.chosen?.length ?? 0);
  }

  /** @returns {number[]} the ranks that have a column */
  get #shown() {
    const { selected } = this.store;
    const all = this.cell?.ranks.length ? this.cell.ranks : [...(this.columns?.of.keys() ?? [])];
    if (all.length <= MOST_COLUMNS) return all;
    const at = Math.max(0, selected === null ? 0 : Math.min(all.indexOf(selected), all.length - MOST_COLUMNS));
    return all.slice(at, at + MOST_COLUMNS);
  }

  #measure() {
    const segments = this.cell?.segments ?? [];
    if (this.mode === "columns")
      this.heights.set([...(this.columns?.figures ?? [])].map(([line, row]) => [line, segments[row].height]));
    else this.heights.set((this.chosen?.figures ?? []).map((at) => [at, segments[this.chosen?.row(at) ?? 0].height]));
  }

  /** Make the list as high as what it holds. It does not shrink: what is below would jump whenever a cell begins. */
  #grow() {
    const held = this.heights.top(this.length) + MARGINS + this.heads.offsetHeight;
    const wanted = Math.max(LEAST, Math.min(HIGHEST, Math.ceil(held)));
    if (wanted <= this.height || this.list.style.height !== (this.height ? `${this.height}px` : "")) return;
    this.height = wanted;
    this.list.style.height = `${wanted}px`;
  }

  #clear() {
    for (const node of this.drawn.values()) node.remove();
    this.drawn.clear();
  }

  #scrolled() {
    if (!this.list.clientHeight) return;
    this.top = this.list.scrollTop;
    this.following = this.#atEnd;
    this.#draw();
  }

  get #atEnd() {
    const { scrollTop, scrollHeight, clientHeight } = this.list;
    return scrollTop + clientHeight >= scrollHeight - LINE;
  }

  #draw() {
    const { cell } = this;
    if (!cell || !this.length) return this.#clear();
    const stamp = `${this.mode} ${this.query} ${this.found[this.foundAt] ?? ""} ${this.difference}`;
    if (stamp !== this.stamp) this.#clear();
    this.stamp = stamp;
    const first = Math.max(0, this.heights.at(this.list.scrollTop, this.length) - OVER);
    const last = Math.min(this.length - 1, this.heights.at(this.list.scrollTop + this.list.clientHeight, this.length) + OVER);
    for (const [at, node] of this.drawn)
      if (at < first || at > last) {
        node.remove();
        this.drawn.delete(at);
      }
    for (let at = first; at <= last; at++) {
      let node = /** @type {HTMLElement} */ (this.drawn.get(at));
      if (!node) {
        node = this.mode === "columns" ? this.#line(at) : this.#row(at);
        this.drawn.set(at, node);
        this.space.append(node);
      }
      const top = `${this.heights.top(at)}px`;
      if (node.style.top !== top) node.style.top = top;
    }
  }

  /** @param {number} at position of a folded row */
  #row(at) {
    const cell = /** @type {Cell} */ (this.cell);
    const row = this.chosen?.row(at) ?? 0;
    const of = cell.segments[row];
    const gutter = h("span.gutter", { title: units.rankLabel(of.ranks) }, units.rankList(of.ranks));
    const sign = of.differs && of.stream !== "note" ? h("span.differs", { title: "not all ranks printed this" }, "≠") : h("span.differs");
    return this.#filled("div.row", row, gutter, sign);
  }

  /** @param {number} line of the columns */
  #line(line) {
    const cell = /** @type {Cell} */ (this.cell);
    const cells = this.#shown.map((rank) => {
      const row = (this.columns?.of.get(rank)?.[line] ?? 0) - 1;
      if (row < 0) return h("div.column");
      const column = this.#filled("div.column", row);
      // A column may be narrower than its line.
      if (cell.segments[row].kind !== "rich") mark(column, "title", plain(cell.texts[row]).slice(0, LONGEST));
      return column;
    });
    const row = this.#rowOn(line);
    const differs = row >= 0 && cell.segments[row].differs;
    return h("div.row", {}, h("span.differs", differs ? { title: "ranks differ here" } : {}, differs ? "≠" : ""), ...cells);
  }

  /** @param {number} line @returns {number} a row on that line of the columns, -1 if there is none */
  #rowOn(line) {
    for (const column of this.columns?.of.values() ?? []) if (column[line]) return column[line] - 1;
    return -1;
  }

  /**
   * @param {string} tag
   * @param {number} row
   * @param {...Node} before what stands before its content
   */
  #filled(tag, row, ...before) {
    const of = /** @type {Cell} */ (this.cell).segments[row];
    const parts = this.#parts(row);
    const marks = {
      "data-kind": of.kind, "data-stream": of.stream, "data-differs": parts ? "part" : String(of.differs),
      "data-here": String(row === this.difference || (this.foundAt >= 0 && this.found[this.foundAt] === row)),
    };
    return h(tag, marks, ...before, this.#content(row, parts));
  }

  /** @param {number} row its pieces where other ranks have nearly the same, else null */
  #parts(row) {
    const cell = /** @type {Cell} */ (this.cell);
    const [of, text] = [cell.segments[row], cell.texts[row]];
    if (!of.differs || of.kind !== "text" || of.stream === "note" || text.length > LONGEST || text.includes("\u001b")) return null;
    this.columns ??= new Columns(cell);
    this.columns.grow();
    const others = this.columns.beside(row);
    const found = others.size ? differing(text, [...others]) : null;
    return found?.map(([text, differs]) => ({ text, classes: differs ? "arw-part" : "" })) ?? null;
  }

  /**
   * @param {number} row
   * @param {{text: string, classes: string}[] | null} parts
   */
  #content(row, parts) {
    const cell = /** @type {Cell} */ (this.cell);
    const of = cell.segments[row];
    if (of.kind === "rich") return showRich(of, () => this.#resized());
    const text = cell.texts[row].length > LONGEST ? `${cell.texts[row].slice(0, LONGEST)} …` : cell.texts[row];
    const bar = of.kind === "text" ? progress(text) : null;
    if (bar) return drawBar(bar);
    const stream = of.stream === "stderr" && of.kind === "text" ? h("span.stderr", { title: "standard error" }, "err") : null;
    return h("span.text", {}, stream, ...(parts ?? pieces(text)).map((piece) => this.#piece(piece)));
  }

  /** @param {{text: string, classes: string}} piece */
  #piece(piece) {
    const node = h("span", {});
    node.className = piece.classes;
    const query = this.query.toLowerCase();
    if (!query) {
      node.textContent = piece.text;
      return node;
    }
    const lower = piece.text.toLowerCase();
    let from = 0;
    for (let at = lower.indexOf(query); at >= 0; at = lower.indexOf(query, from)) {
      node.append(piece.text.slice(from, at), h("mark", {}, piece.text.slice(at, at + query.length)));
      from = at + query.length;
    }
    node.append(piece.text.slice(from));
    return node;
  }

  /** The height of a figure is now known. */
  #resized() {
    this.#measure();
    this.space.style.height = `${this.heights.top(this.length)}px`;
    this.#grow();
    if (this.following) this.list.scrollTop = this.list.scrollHeight;
    this.#draw();
  }

  /** @param {number} row to be seen in the middle */
  #show(row) {
    this.following = false;
    let at = this.chosen?.position(row) ?? 0;
    if (this.mode === "columns")
      for (const rank of this.cell?.segments[row].ranks ?? []) at = this.columns?.of.get(rank)?.indexOf(row + 1) ?? at;
    this.list.scrollTop = Math.max(0, this.heights.top(at) - this.list.clientHeight / 3);
    this.#draw();
  }

  #nextDifference() {
    if (!this.cell) return;
    this.difference = nextDifference(this.cell, this.difference);
    if (this.difference >= 0) {
      if (this.mode === "folded" && this.store.selected !== null) this.store.select(null);
      this.#show(this.difference);
    }
    say(this.matches, this.difference < 0 ? "ranks do not differ" : `ranks differ: ${units.rankLabel(this.cell.segments[this.difference].ranks)}`);
  }

  #listCells() {
    const { output } = this.store;
    const cells = [...output.cells.values()].reverse();
    const key = cells.map((cell) => `${cell.n}${cell.done}${cell.ok}${cell.code.length}`).join();
    if (this.cells.dataset.key === key) return;
    this.cells.dataset.key = key;
    this.cells.replaceChildren(
      ...cells.map((cell, i) => {
        const state = !cell.done ? "running" : cell.ok === false ? "failed" : "done";
        const first = cell.code.trim().split("\n")[0].slice(0, 40);
        return h("option", { value: i === 0 ? "" : cell.n }, `cell ${cell.label} · ${state}${first ? ` · ${first}` : ""}`);
      }),
    );
    this.cells.disabled = cells.length < 2;
    this.cells.value = this.wanted === null ? "" : String(this.wanted);
    if (this.cells.selectedIndex < 0) this.cells.selectedIndex = 0;
  }

  #choose() {
    this.wanted = this.cells.value === "" ? null : Number(this.cells.value);
    this.difference = -1;
    this.update(true);
  }

  /** @param {string} mode */
  #setMode(mode) {
    this.mode = mode;
    this.modes.set(mode);
    this.#clear();
    this.update();
  }

  #heads() {
    const shown = this.mode === "columns" ? this.#shown : [];
    mark(this.list, "data-mode", this.mode);
    this.node.style.setProperty("--arw-columns", String(shown.length || 1));
    const key = shown.join();
    if (this.heads.dataset.key === key) return;
    this.heads.dataset.key = key;
    this.heads.hidden = !shown.length;
    const all = this.cell?.ranks.length ?? 0;
    const more = all > shown.length && shown.length ? ` of ${all} ranks` : "";
    this.heads.replaceChildren(h("span.differs"), ...shown.map((rank) => h("span.column-head", {}, `rank ${rank}${more}`)));
    this.#clear();
  }

  /** @param {number | null} rank */
  #tabs(rank) {
    this.tabs.hidden = this.mode !== "tabs";
    if (this.tabs.hidden) return;
    const ranks = this.cell?.ranks ?? [];
    const failed = new Set((this.cell?.errors ?? []).flatMap((one) => one.ranks));
    const key = `${ranks.join()};${rank};${[...failed].join()}`;
    if (this.tabs.dataset.key === key) return;
    this.tabs.dataset.key = key;
    const had = this.tabs.contains(document.activeElement);
    this.tabs.replaceChildren(
      ...ranks.map((one) =>
        h("button.tab", { type: "button", "aria-pressed": String(one === rank), onclick: () => one !== this.store.selected && this.store.select(one) },
          `rank ${one}`, failed.has(one) ? h("span.failed", {}, " failed") : null)),
    );
    if (had) /** @type {any} */ (this.tabs.querySelector('[aria-pressed="true"]'))?.focus();
  }

  #errors() {
    const errors = this.cell?.errors ?? [];
    const key = `${this.cell?.n} ${errors.map((one) => one.row).join()}`;
    if (this.errors.dataset.key === key) return;
    this.errors.dataset.key = key;
    this.errors.hidden = !errors.length;
    this.errors.replaceChildren(
      ...errors.slice(0, 20).map((one) =>
        h("button.error", { type: "button", onclick: () => this.#jump(one) },
          icon("failed"), h("span.error-ranks", {}, units.rankLabel(one.ranks)), h("span.error-name", {}, one.ename),
          h("span.error-value", {}, plain(one.evalue)), h("span.error-go", {}, "show"))),
      ...(errors.length > 20 ? [h("div.muted", {}, `and ${errors.length - 20} more`)] : []),
    );
  }

  /** @param {{row: number, ranks: number[]}} one */
  #jump(one) {
    const { selected } = this.store;
    if (selected !== null && !one.ranks.includes(selected)) this.store.select(null);
    this.update();
    this.#show(one.row);
    this.list.focus({ preventScroll: true });
  }

  #live() {
    const live = this.cell?.live ?? new Map();
    this.live.hidden = !live.size;
    /** @type {Map<string, number[]>} */
    const alike = new Map();
    for (const [rank, text] of live) if (this.chosen?.rank === null || this.chosen?.rank === rank) alike.set(text, [...(alike.get(text) ?? []), rank]);
    const key = JSON.stringify([...alike]);
    if (this.live.dataset.key === key) return;
    this.live.dataset.key = key;
    this.live.replaceChildren(
      ...[...alike].map(([text, ranks]) => {
        const bar = progress(plain(text));
        return h("div.live-row", {}, h("span.gutter", {}, units.rankList(ranks)), bar ? drawBar(bar) : h("span.text", {}, plain(text)));
      }),
    );
  }

  #counts() {
    const { cell } = this;
    if (!cell) return say(this.counts, "No cell has run since this was opened");
    const parts = [counted(cell)];
    if (cell.dropped) parts.push(`the first ${units.count(cell.dropped)} are no longer kept`);
    if (cell.done) parts.push(`${cell.ok === false ? "failed" : "done"}${cell.seconds === null ? "" : ` in ${units.seconds(cell.seconds)}`}`);
    else parts.push("running");
    say(this.counts, parts.join(" · "));
  }

  #query(again = false) {
    if (!again) this.query = this.search.value;
    this.found = [];
    this.foundAt = -1;
    this.searchedTo = 0;
    if (again) return;
    say(this.matches, "");
    if (this.query) this.#find();
    this.#draw();
  }

  /** Search what has come, a part at a time so that the page stays awake. */
  #find() {
    const { cell, query } = this;
    if (!cell || !query) return;
    const small = query.toLowerCase();
    const until = performance.now() + 12;
    const rank = this.chosen?.rank ?? null;
    for (; this.searchedTo < cell.rows; this.searchedTo++) {
      if ((this.searchedTo & 1023) === 0 && performance.now() > until) break;
      const row = this.searchedTo;
      if (rank !== null && !cell.segments[row].ranks.includes(rank)) continue;
      if (plain(cell.texts[row]).toLowerCase().includes(small)) this.found.push(row);
    }
    const whole = this.searchedTo >= cell.rows;
    const at = this.foundAt >= 0 ? `${this.foundAt + 1} of ` : "";
    const n = this.found.length;
    say(this.matches, `${at}${units.count(n)}${whole ? "" : "+"} ${n === 1 ? "match" : "matches"}`);
    if (!whole) {
      clearTimeout(this.later);
      this.later = window.setTimeout(() => this.#find(), 4);
    }
  }

  /** @param {KeyboardEvent} event */
  #searchKey(event) {
    if (event.key !== "Enter" || !this.found.length) return;
    event.preventDefault();
    const n = this.found.length;
    this.foundAt = (this.foundAt + (event.shiftKey ? -1 : 1) + n) % n;
    this.#find();
    this.#show(this.found[this.foundAt]);
  }

  async #copy() {
    const { cell, chosen } = this;
    if (!cell || !chosen) return;
    const lines = [];
    let before = "";
    for (let at = 0; at < chosen.length; at++) {
      const row = chosen.row(at);
      const ranks = units.rankLabel(cell.segments[row].ranks);
      const front = chosen.rank !== null ? "" : ranks === before ? `${" ".repeat(ranks.length)} │ ` : `${ranks} │ `;
      lines.push(front + plain(cell.texts[row]));
      before = ranks;
    }
    const text = lines.join("\n");
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = h("textarea.away", { "aria-hidden": "true" });
      area.value = text;
      this.node.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    say(this.matches, done ? `${units.count(lines.length)} lines copied` : "the browser does not allow copying");
  }
}

/** @param {{label: string, share: number, rest: string}} bar */
function drawBar(bar) {
  const now = Math.round(bar.share * 100);
  const label = bar.label || "progress";
  return h(
    "span.bar", {},
    bar.label ? h("span.bar-label", {}, bar.label) : null,
    h("span.bar-track", { role: "progressbar", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": now },
      h("span.bar-fill", { style: `width:${now}%` })),
    h("span.bar-share", {}, `${now} %`), h("span.bar-rest", {}, bar.rest),
  );
}
