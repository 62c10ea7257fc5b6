// The latest of what was logged, in the first line of the page, however far below its charts are.

import { DrawingTimer, h, hide, mark, say, svg } from "./dom.js";
import { figure, lasted, seconds } from "./units.js";

/** @typedef {import("./curves.js").Curves} Curves */
/** @typedef {import("./curves.js").Value} Value */

const PACE = 1000; // ms between two drawings
const MOST_NAMES = 2;
const LATE = 3; // seconds without a step before that is said, if a step takes less
const MANY = 3; // steps that might have come in that time
const [WIDTH, HEIGHT] = [72, 16]; // pixels of a line
const MOST_POINTS = 60;

export class Glance {
  constructor() {
    this.pace = h("span.glance-pace", { hidden: true });
    this.figures = h("span.glance-figures");
    this.node = h("span.glance", {}, this.pace, this.figures);
    this.version = this.seen = -1;
    this.since = 0; // when the last step came
    this.timer = new DrawingTimer(PACE);
    /** @type {Map<string, (curves: Curves) => void>} */
    this.parts = new Map();
  }

  /**
   * @param {Curves} curves
   * @param {number | undefined} cell the last cell
   * @param {boolean} running whether ranks run
   */
  update(curves, cell, running) {
    this.#tellPace(curves, cell, running);
    if (curves.version === this.version) return;
    if (!this.timer.isDue(() => this.update(curves, cell, running))) return;
    this.version = curves.version;
    const names = curves.names.slice(0, MOST_NAMES);
    if (names.join("\n") !== [...this.parts.keys()].join("\n")) {
      this.figures.replaceChildren();
      this.parts = new Map(names.map((name) => [name, this.#part(name)]));
    }
    for (const draw of this.parts.values()) draw(curves);
  }

  /**
   * @param {Curves} curves
   * @param {number | undefined} cell
   * @param {boolean} running
   */
  #tellPace(curves, cell, running) {
    const pace = curves.pace(cell);
    const { version } = curves;
    const now = performance.now();
    if (version !== this.seen) [this.seen, this.since] = [version, now];
    const still = (now - this.since) / 1000;
    hide(this.pace, pace === null || !running);
    if (pace === null) return;
    const late = still > Math.max(LATE, MANY / pace);
    mark(this.pace, "data-late", String(late));
    say(this.pace, late ? `no step for ${lasted(still)}` : paceInWords(pace));
  }

  /** @param {string} name */
  #part(name) {
    const [value, step] = [h("span.glance-value"), h("span.muted")];
    const title = h("span.glance-name", { title: name }, name);
    const line = svg("polyline", {});
    const spark = svg("svg", { class: "arw-spark", width: WIDTH, height: HEIGHT, "aria-hidden": "true" }, line);
    this.figures.append(h("span.glance-part", {}, title, " ", value, " ", spark, step));
    return (/** @type {Curves} */ curves) => {
      const [steps, means] = curves.columns(name, "range");
      const known = means.flatMap((y, i) => (typeof y === "number" ? [[/** @type {number} */ (steps[i]), y]] : []));
      say(value, means.at(-1) === null ? "not a number" : figure(known.at(-1)?.[1]));
      say(step, `step ${steps.at(-1) ?? ""}`);
      mark(line, "points", sparkline(known));
    };
  }
}

/** @param {number} pace steps a second @returns {string} `12 steps/s`, or `15 s a step` */
export function paceInWords(pace) {
  return pace < 0.2 ? `${seconds(1 / pace)} a step` : `${Number(pace.toPrecision(pace < 10 ? 2 : 3))} steps/s`;
}

/**
 * @param {number[][]} points at most `MOST_POINTS` of them are drawn, the last among them
 * @returns {string} as SVG's polyline takes them
 */
export function sparkline(points) {
  const every = Math.ceil(points.length / MOST_POINTS);
  const some = points.filter((_, i) => (points.length - 1 - i) % every === 0);
  if (some.length < 2) return "";
  const [xs, ys] = [some.map(([x]) => x), some.map(([, y]) => y)];
  const [left, wide] = [xs[0], xs[xs.length - 1] - xs[0] || 1];
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const across = (/** @type {number} */ x) => (1 + ((WIDTH - 2) * (x - left)) / wide).toFixed(1);
  const down = (/** @type {number} */ y) => (high === low ? HEIGHT / 2 : 2 + ((HEIGHT - 4) * (high - y)) / (high - low)).toFixed(1);
  return some.map(([x, y]) => `${across(x)},${down(y)}`).join(" ");
}
