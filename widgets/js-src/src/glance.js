// The latest of what was logged, in the first line of the page, however far below its charts are.

import { h, mark, say, svg } from "./dom.js";
import { figure } from "./units.js";

/** @typedef {import("./curves.js").Curves} Curves */
/** @typedef {import("./curves.js").Value} Value */

const PACE = 1000; // ms between two drawings
const MOST_NAMES = 2;
const [WIDTH, HEIGHT] = [72, 16]; // pixels of a line
const MOST_POINTS = 60;

export class Glance {
  constructor() {
    this.node = h("span.glance");
    this.version = -1;
    this.drawnAt = -PACE;
    this.later = 0;
    /** @type {Map<string, (curves: Curves) => void>} */
    this.parts = new Map();
  }

  /** @param {Curves} curves */
  update(curves) {
    const now = performance.now();
    clearTimeout(this.later);
    if (curves.version === this.version) return;
    if (now - this.drawnAt < PACE) {
      this.later = window.setTimeout(() => this.update(curves), PACE - (now - this.drawnAt));
      return;
    }
    [this.version, this.drawnAt] = [curves.version, now];
    const names = curves.names.slice(0, MOST_NAMES);
    if (names.join("\n") !== [...this.parts.keys()].join("\n")) {
      this.node.replaceChildren();
      this.parts = new Map(names.map((name) => [name, this.#part(name)]));
    }
    for (const draw of this.parts.values()) draw(curves);
  }

  /** @param {string} name */
  #part(name) {
    const [value, step] = [h("span.glance-value"), h("span.muted")];
    const title = h("span.glance-name", { title: name }, name);
    const line = svg("polyline", {});
    const spark = svg("svg", { class: "arw-spark", width: WIDTH, height: HEIGHT, "aria-hidden": "true" }, line);
    this.node.append(h("span.glance-part", {}, title, " ", value, " ", spark, step));
    return (/** @type {Curves} */ curves) => {
      const [steps, means] = curves.columns(name, "range");
      const known = means.flatMap((y, i) => (typeof y === "number" ? [[/** @type {number} */ (steps[i]), y]] : []));
      say(value, means.at(-1) === null ? "not a number" : figure(known.at(-1)?.[1]));
      say(step, `step ${steps.at(-1) ?? ""}`);
      mark(line, "points", sparkline(known));
    };
  }
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
