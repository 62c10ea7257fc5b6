// What ranks logged: a chart for each name, over steps.

import uPlot from "uplot";
import { DrawingTimer, choice, h, hide, mark, say, swatch, widthOf } from "./dom.js";
import { figure, rankLabel } from "./units.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./curves.js").Curves} Curves */

const PACE = 500; // ms between two drawings
const HEIGHT = 180;
const LOW = 112; // the same where height is scarce: a chart has its name above
const MOST_CHARTS = 12;
const LEAST_CHART = 250; // pixels of width, where height is scarce
const STEPS = Array.from({ length: 33 }, (_, i) => [1, 2, 5].map((n) => Number(`${n}e${i - 16}`))).flat(); // between two figures
const WHOLE = STEPS.filter((step) => step >= 1);
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];
const NOTHING = "Nothing has been logged yet: log(loss=..., step=...) in a cell on any rank";

export class Log {
  /**
   * @param {Store} store
   * @param {{low?: boolean}} [how] `low` where height is scarce
   */
  constructor(store, { low = false } = {}) {
    this.store = store;
    this.low = low;
    /** @type {"rank" | "range"} */
    this.by = "range";
    this.scale = "linear";
    this.version = -1;
    this.timer = new DrawingTimer(PACE);
    /** @type {Map<string, Chart>} */
    this.charts = new Map();
    this.lines = choice("lines", [["range", low ? "Mean" : "Mean and range"], ["rank", "By rank"]], (by) => {
      this.by = /** @type {"rank" | "range"} */ (by);
      this.lines.set(by);
      this.update(true);
    });
    this.scales = choice("scale", [["linear", "Linear"], ["log", low ? "Log" : "Logarithmic"]], (scale) => {
      this.scale = scale;
      this.scales.set(scale);
      this.update(true);
    });
    this.lines.set(this.by);
    this.scales.set(this.scale);
    this.tools = [this.lines.node, this.scales.node]; // they stand in the head of the section
    this.grid = h("div.log-grid");
    this.all = !low; // whether all charts are shown, or those for which a row has room
    this.more = h("button.link", { type: "button", hidden: true, onclick: () => {
      this.all = !this.all;
      this.update(true);
    } });
    this.note = h("div.muted.none", {}, NOTHING);
    this.node = h("div.log", { "data-low": low }, this.grid, this.more, this.note);
  }

  update(force = false) {
    const { curves } = this.store;
    const theme = this.node.closest("[data-theme]")?.getAttribute("data-theme") ?? "";
    const few = !this.all && (widthOf(this.node, () => this.update()) >= 2 * LEAST_CHART ? 2 : 1);
    const names = curves.names.slice(0, few || MOST_CHARTS);
    const charts = names.map((name) => this.#chart(name));
    const width = charts.length ? Math.floor(widthOf(charts[0].node, () => this.update()) || 400) : 0;
    const key = `${names.length} ${width} ${theme} ${this.by} ${this.scale}`;
    if (!force && curves.version === this.version && key === this.key) return;
    if (!this.timer.isDue(() => this.update(), { force, resized: key !== this.key })) return;
    this.version = curves.version;
    this.key = key;
    const more = this.all ? curves.names.length - names.length : 0;
    const folded = curves.names.slice(names.length);
    hide(this.more, !this.low || (this.all ? curves.names.length < 2 : !folded.length));
    say(this.more, this.all ? "fewer charts" : `${folded.length} more: ${folded.join(", ")}`);
    for (const [name, { node }] of this.charts) hide(node, !names.includes(name));
    say(this.note, names.length ? (more ? `${more} more names are not drawn; cluster.logged() has them.` : "") : NOTHING);
    hide(this.note, names.length > 0 && !more);
    for (const tool of this.tools) hide(tool, !names.length);
    for (const chart of charts) chart.draw(curves, width, this.by, this.scale, key);
  }

  /** @param {string} name */
  #chart(name) {
    let chart = this.charts.get(name);
    if (!chart) {
      this.charts.set(name, (chart = new Chart(name, this.low)));
      this.grid.append(chart.node);
    }
    return chart;
  }

  key = "";
}

/** One name: its lines and their last values. */
class Chart {
  /**
   * @param {string} name
   * @param {boolean} low
   */
  constructor(name, low) {
    this.name = name;
    this.low = low;
    this.key = "";
    /** @type {any} */
    this.plot = null;
    /** @type {HTMLElement[]} */
    this.values = [];
    this.at = h("span.muted");
    this.chart = h("div.log-chart", { role: "img" });
    this.legend = h("div.legend");
    this.node = h("figure.log-figure", {}, h("figcaption.log-name", {}, h("span", {}, name), h("span.spring"), this.at), this.chart, this.legend);
  }

  /**
   * @param {Curves} curves
   * @param {number} width
   * @param {"rank" | "range"} by the mean of the ranks with a band from the least to the most of them, or each rank
   * @param {string} scale
   * @param {string} key of what all charts share
   */
  draw(curves, width, by, scale, key) {
    const ranks = curves.ranks(this.name);
    if (ranks.length < 2) by = "rank";
    const titles = by === "rank" ? ranks.map((rank) => `rank ${rank}`) : [this.low ? "mean" : `mean of ${rankLabel(ranks)}`, "max", "min"];
    this.data = curves.columns(this.name, by);
    // A logarithm has no zero: there such points are left out.
    const drawn = scale === "log" ? this.data.map((column, i) => (i ? column.map((y) => (y === undefined || (y ?? 0) > 0 ? y : null)) : column)) : this.data;
    const own = `${key} ${titles.join()}`;
    if (own !== this.key) this.#build(titles, width, scale, by === "range");
    this.key = own;
    this.plot.setData(drawn);
    this.last = by === "rank" ? ranks.map((rank) => curves.last(this.name, rank)) : [];
    this.#values(null);
  }

  /**
   * @param {string[]} titles
   * @param {number} width
   * @param {string} scale
   * @param {boolean} band whether the second and third line are the edges of a band
   */
  #build(titles, width, scale, band) {
    this.plot?.destroy();
    const style = getComputedStyle(this.node);
    const colour = (/** @type {string} */ name) => style.getPropertyValue(`--arw-${name}`).trim();
    const font = `11px ${style.fontFamily}`;
    const axis = { stroke: colour("muted"), font, labelFont: font, grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false } };
    const strokes = titles.map((_, i) => colour(`series-${band ? 0 : i % 8}`));
    this.plot = new uPlot(
      {
        width, height: this.low ? LOW : HEIGHT, padding: [8, null, 0, null], legend: { show: false },
        cursor: { points: { size: 6 }, drag: { x: false, y: false } },
        scales: { x: { time: false }, y: { distr: scale === "log" ? 3 : 1 } },
        axes: [
          { ...axis, size: 26, space: 60, incrs: () => (this.data[0].every(Number.isInteger) ? WHOLE : STEPS), values: (_plot, ticks) => ticks.map((tick) => figure(tick)) },
          { ...axis, size: 58, values: (_plot, ticks) => ticks.map((tick) => (tick === null ? "" : figure(tick))) },
        ],
        series: [
          {},
          ...titles.map((label, i) => ({
            label, stroke: strokes[i], width: band && i ? 0 : titles.length > 12 ? 1 : 1.75, spanGaps: false,
            dash: DASHES[Math.floor(i / 8) % 4], points: { show: () => this.data[0].length < 2 },
          })),
        ],
        bands: band ? [{ series: [2, 3], fill: `${strokes[0]}2e` }] : [],
        hooks: { setCursor: [(/** @type {any} */ plot) => this.#values(plot.cursor.idx ?? null)] },
      },
      /** @type {any} */ (this.data),
      this.chart.replaceChildren() ?? this.chart,
    );
    mark(this.chart, "aria-label", `chart of ${this.name} over steps, ${band ? `${titles[0]}, with min and max` : titles.length > 4 ? `${titles.length} lines` : titles.join(", ")}`);
    this.values = titles.map(() => h("span.legend-value"));
    this.legend.replaceChildren(
      ...titles.map((label, i) => h("span.legend-item", {}, ...(band && i ? [] : [swatch(strokes[i], this.plot.series[i + 1].dash)]), h("span", {}, label), this.values[i])),
    );
    mark(this.legend, "data-many", String(titles.length > 8));
  }

  /** @type {(number[] | (number | null | undefined)[])[]} */
  data = [[]];
  /** @type {(number | string | undefined)[]} */
  last = [];

  /** @param {number | null} at index of the cursor, null for the latest */
  #values(at) {
    const [steps, ...columns] = this.data;
    columns.forEach((column, i) => {
      const newest = this.last[i] ?? column.findLast((value) => value !== undefined);
      const value = at === null ? newest : column[at];
      if (this.values[i]) say(this.values[i], typeof value === "string" ? value : value === null ? "not a number" : figure(this.low && value !== undefined ? Number(value.toPrecision(4)) : value));
    });
    const step = at === null ? steps[steps.length - 1] : steps[at];
    say(this.at, step === undefined ? "" : `step ${figure(step)}`);
  }
}
