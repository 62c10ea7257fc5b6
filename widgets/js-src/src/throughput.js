// What travels, over ten minutes, what the operations did, and the states of the ranks beside it.

import uPlot from "uplot";
import { DrawingTimer, LEAST_WIDTH, choice, h, hide, mark, say, swatch, widthOf } from "./dom.js";
import { operations } from "./snapshot.js";
import { MOST_LINKS, WINDOW } from "./history.js";
import { States } from "./states.js";
import * as units from "./units.js";

/** @typedef {import("./store.js").Store} Store */

const PACE = 1000; // ms between two drawings: the history has one row a second
const HEIGHT = 220;
const LOW = 124; // the same where height is scarce
const LEAST_SPAN = 30; // seconds of the time axis
const OPERATIONS = ["operation", "ranks", "calls", "bytes", "smallest – largest", "transfer", "wait"];
const NOT_TIMED = "timed with --timing only";
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];

export class Throughput {
  /**
   * @param {HTMLElement} root
   * @param {Store} store
   * @param {{low?: boolean}} [how] `low` where height is scarce
   */
  constructor(root, store, { low = false } = {}) {
    this.store = store;
    this.low = low;
    this.by = "total";
    this.key = "";
    this.version = -1;
    this.timer = new DrawingTimer(PACE);
    /** @type {any} */
    this.plot = null;
    /** @type {string[]} */
    this.names = [];
    /** @type {HTMLElement[]} */
    this.values = [];
    /** @type {[string, string][]} */
    const choices = [["total", "Total"], ["rank", "By rank"], ["link", "By link"], ["states", "States"]];
    this.toggle = choice("series", choices, (by) => {
      this.by = by;
      this.toggle.set(by);
      this.update(true);
    });
    this.toggle.set(this.by);
    this.time = h("span.muted");
    this.chart = h("div.chart", { role: "img" });
    this.legend = h("div.legend");
    this.states = new States(root, store, { low });
    this.body = h("tbody");
    const head = h("tr", {}, ...OPERATIONS.map((name, i) => h(i ? "th.figure" : "th", { scope: "col" }, name)));
    this.table = h("div.table-scroll", { tabindex: 0, role: "region", "aria-label": "operations" }, h("table.table", {}, h("thead", {}, head), this.body));
    this.none = h("div.muted.none", {}, "No collective has been called yet");
    this.tools = [this.toggle.node]; // they stand in the head of the section
    this.summary = h("summary");
    const operations = low ? h("details.operations", { ontoggle: () => this.#operations() }, this.summary, this.table) : this.table;
    this.details = low ? operations : null;
    const drawn = [h("div.chart-head", {}, this.time), this.chart, this.legend, this.states.node];
    this.node = h("div.throughput", { "data-low": low }, ...drawn, operations, this.none);
  }

  /** @returns {string} what is drawn, for the title of a picture; empty for the traffic */
  get shows() {
    return this.by === "states" ? "states of the ranks" : "";
  }

  update(force = false) {
    const { history, snapshot } = this.store;
    if (!snapshot) return;
    this.#operations();
    const byState = this.by === "states";
    hide(this.chart, byState);
    hide(this.legend, byState);
    hide(this.states.node, !byState);
    const names = byState ? [] : this.#series();
    const width = Math.max(LEAST_WIDTH, Math.floor(widthOf(this.node, () => this.update()) || 800));
    const theme = this.node.closest("[data-theme]")?.getAttribute("data-theme");
    const key = `${this.by} ${names.join()} ${width} ${theme}`;
    if (!force && history.version === this.version && key === this.key) return;
    if (!this.timer.isDue(() => this.update(), { force, resized: key !== this.key })) return;
    this.version = history.version;
    const built = key !== this.key;
    this.key = key;
    if (byState) {
      this.states.draw(width);
      return;
    }
    if (built) this.#build(names, width);
    this.names = names;
    this.plot.setData(history.columns(names));
    this.#values(null);
  }

  #series() {
    const { series } = this.store.history;
    if (this.by === "total") return ["wire", "effective", "peak"];
    const own = [...series.keys()].filter((name) => (this.by === "rank" ? name.startsWith("rank ") : name.includes("→")));
    return [...own, ...(this.by === "rank" ? ["peak"] : [])];
  }

  /**
   * @param {string[]} names
   * @param {number} width
   */
  #build(names, width) {
    this.plot?.destroy();
    const style = getComputedStyle(this.node);
    const colour = (/** @type {string} */ name) => style.getPropertyValue(`--arw-${name}`).trim();
    const font = `11px ${style.fontFamily}`;
    const strokes = names.map((name, i) => (name === "peak" ? colour("muted") : colour(`series-${i % 8}`)));
    const axis = {
      stroke: colour("muted"), font, labelFont: font, grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false },
    };
    const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
    this.plot = new uPlot(
      {
        width, height: this.low ? LOW : HEIGHT, padding: [8, null, 0, null], legend: { show: false },
        cursor: { points: { size: 6 }, drag: { x: false, y: false } },
        scales: {
          x: { time: true, range: (_plot, _min, max) => this.#span(max) },
          y: { range: (_plot, _min, max) => [0, max > 0 ? max * 1.08 : 1e6] },
        },
        axes: [
          { ...axis, size: 28, values: (_plot, ticks) => ticks.map((tick) => clock.format(tick * 1000)), space: 90 },
          { ...axis, size: 74, values: (_plot, ticks) => ticks.map((tick) => (tick === 0 ? "0" : units.rate(tick))) },
        ],
        series: [
          {},
          ...names.map((name, i) => ({
            label: name, stroke: strokes[i], width: name === "peak" ? 1.25 : names.length > 12 ? 1 : 1.75, spanGaps: false,
            dash: name === "peak" ? [6, 4] : this.by === "total" ? DASHES[i === 1 ? 1 : 0] : DASHES[Math.floor(i / 8) % 4],
            fill: name === "wire" ? `${strokes[i]}1f` : undefined,
            points: { show: false },
          })),
        ],
        hooks: { setCursor: [(/** @type {any} */ plot) => this.#values(plot.cursor.idx ?? null)] },
      },
      /** @type {any} */ (this.store.history.columns(names)),
      this.chart.replaceChildren() ?? this.chart,
    );
    mark(this.chart, "aria-label", `chart of ${names.length > 4 ? `${names.length} series` : names.join(", ")} over the last ten minutes`);
    this.values = names.map(() => h("span.legend-value"));
    this.legend.replaceChildren(
      ...names.map((name, i) => h("button.legend-item", { type: "button", "aria-pressed": "true", title: title(name, false), onclick: (/** @type {Event} */ event) => this.#toggle(event, i) }, swatch(strokes[i], this.plot.series[i + 1].dash), h("span", {}, title(name, this.low)), this.values[i])),
    );
    if (!names.length) {
      const links = this.store.snapshot?.links?.length ?? 0;
      this.legend.append(h("span.muted", {}, this.by === "link" && links > MOST_LINKS ? `${links} links are too many to draw one by one` : "nothing is known yet"));
    }
    mark(this.legend, "data-many", String(names.length > 8));
  }

  /**
   * Hide a series, or show it again; the axis follows what is shown.
   * @param {Event} event
   * @param {number} i
   */
  #toggle(event, i) {
    const shown = !this.plot.series[i + 1].show;
    this.plot.setSeries(i + 1, { show: shown });
    mark(/** @type {Element} */ (event.currentTarget), "aria-pressed", String(shown));
  }

  /** @param {number} max @returns {[number, number]} */
  #span(max) {
    const end = max ?? Date.now() / 1000;
    const first = this.store.history.at[0] ?? end;
    return [end - Math.min(WINDOW, Math.max(LEAST_SPAN, end - first)), end];
  }

  /** @param {number | null} at index of the cursor, null for the latest */
  #values(at) {
    const { history } = this.store;
    const i = at ?? history.at.length - 1;
    this.names.forEach((name, k) => {
      const node = this.values[k];
      if (!node) return;
      const rates = history.series.get(name);
      say(node, units.rate(rates?.[i]));
      // Before the first `bench` there is no peak, so its legend is hidden.
      if (name === "peak" && node.parentElement) hide(node.parentElement, !rates?.some((rate) => typeof rate === "number"));
    });
    const seconds = history.at[i];
    say(this.time, at === null || seconds === undefined ? "" : new Date(seconds * 1000).toLocaleTimeString());
  }

  #operations() {
    const rows = operations(/** @type {any} */ (this.store.snapshot));
    hide(this.details ?? this.table, !rows.length);
    say(this.summary, `${rows.map((row) => row.op).join(", ")} · ${units.counted(rows.reduce((all, row) => all + row.calls, 0), "call")}`);
    hide(this.none, rows.length > 0);
    if (this.details && !this.details.open) return;
    while (this.body.rows.length > rows.length) this.body.deleteRow(-1);
    while (this.body.rows.length < rows.length)
      this.body.append(h("tr", {}, h("th", { scope: "row" }), ...Array.from({ length: 6 }, () => h("td.figure"))));
    rows.forEach((row, i) => {
      const range = row.smallest === row.largest ? units.bytes(row.smallest) : `${units.bytes(row.smallest)} – ${units.bytes(row.largest)}`;
      const timed = (/** @type {number | null} */ time) => (time === null ? NOT_TIMED : units.seconds(time));
      const texts = [row.op, String(row.ranks), units.count(row.calls), units.bytes(row.nbytes), range, timed(row.transfer), timed(row.wait)];
      texts.forEach((text, k) => {
        say(this.body.rows[i].cells[k], text);
        mark(this.body.rows[i].cells[k], "data-unknown", String(text === NOT_TIMED));
      });
    });
  }
}

/**
 * @param {string} name of a series, in words
 * @param {boolean} low whether few, since height is scarce
 */
function title(name, low) {
  if (low) return name;
  if (name === "wire") return "wire, mean of ranks";
  if (name === "effective") return "effective, mean of ranks";
  if (name === "peak") return "measured peak (bench)";
  return name;
}
