// Traffic as a map: a row for each rank that sends, a column for each that receives. It stands for links that are too
// many, or too long, to be drawn between the ranks.

import { h, mark, say } from "./dom.js";
import { busiest, linksAt, trafficOf } from "./traffic.js";
import * as units from "./units.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./traffic.js").Traffic} Traffic */
/** @typedef {import("./snapshot.js").LinkFinding} LinkFinding */
/** @typedef {ReturnType<typeof import("./snapshot.js").hostsOf>} Hosts */

const HIGHEST = 544; // pixels of the map
const LEAST_CELL = 4; // below which hosts stand in place of ranks
const MOST_CELL = 22;
const MOST_RANKS = 128; // that have a row each, where there are several hosts
const ABOVE = 18; // pixels of the numbers above
const SIDE = 250; // pixels beside the map for what is read there
const CHARACTER = 6.6;
const MOST_NAMED = 96; // pixels of a host's name
const MOST_BUSIEST = 5;
const LEAST_SEEN = 0.25; // of the colour, for the least traffic
const NEAR = 0.8; // of the highest rate, from which on rates are about equal
const LEGEND = /** @type {const} */ ([["idle", "idle"], ["slow", "slow"], ["missing", "missing"], ["unknown", "unknown"]]);

export class Matrix {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    /** @type {Traffic | null} */
    this.traffic = null;
    /** @type {LinkFinding[]} */
    this.found = [];
    this.byHost = false;
    this.cell = 0;
    this.left = 0;
    /** @type {number | null} the place that is read, by row and column */
    this.at = null;
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.frame = h(
      "div.map-frame",
      {
        tabindex: 0, role: "group",
        onpointermove: (/** @type {PointerEvent} */ event) => this.#point(event), onpointerleave: () => this.#read(null),
        onkeydown: (/** @type {KeyboardEvent} */ event) => this.#key(event), onblur: () => this.#read(null),
      },
      this.canvas,
    );
    this.readout = h("div.map-read");
    this.heard = h("div.away", { role: "status" }); // not the rates that change while nothing else is chosen
    this.head = h("div.map-head");
    this.most = h("span");
    this.list = h("ol.map-busiest");
    this.calm = h("div.muted");
    /** @type {Map<string, HTMLElement>} */
    this.legend = new Map(LEGEND.map(([state, name]) => [state, h("span.map-key", { "data-link": state }, name)]));
    this.node = h(
      "div.map", { hidden: true }, h("div.map-scroll", {}, this.frame),
      h(
        "div.map-side", {},
        this.head,
        h("div.map-legend", {}, h("span.label", {}, "0"), h("span.map-scale", { "aria-hidden": "true" }), this.most, ...this.legend.values()),
        this.list, this.calm, this.readout, this.heard,
      ),
    );
  }

  /**
   * @param {LinkFinding[]} found
   * @param {Hosts} hosts
   * @param {number} width of the picture, in pixels
   */
  update(found, hosts, width) {
    const ranks = hosts.reduce((sum, one) => sum + one.ranks.length, 0);
    const several = hosts.length > 1;
    const names = Math.min(MOST_NAMED, Math.ceil(CHARACTER * Math.max(...hosts.map(({ host }) => host.name.length))));
    const numbers = Math.ceil(CHARACTER * String(ranks - 1).length) + 6;
    const room = (/** @type {number} */ left) => Math.min(HIGHEST, (width - left > HIGHEST + SIDE ? width - SIDE : width) - left);
    const leftOf = (/** @type {boolean} */ byHost) => (byHost ? names + 8 : numbers + (several ? names + 8 : 0));
    const fitting = (/** @type {number} */ n, /** @type {boolean} */ byHost) => Math.floor(room(leftOf(byHost)) / n);
    this.byHost = several && (ranks > MOST_RANKS || fitting(ranks, false) < LEAST_CELL);
    const n = this.byHost ? hosts.length : ranks;
    this.left = leftOf(this.byHost);
    this.cell = Math.max(2, Math.min(this.byHost ? 2 * MOST_CELL : MOST_CELL, fitting(n, this.byHost)));
    this.found = found;
    this.traffic = trafficOf(found, hosts, this.byHost);
    const who = this.byHost ? "host" : "rank";
    say(this.head, `Traffic from each ${who} (row) to each other (column)`);
    mark(this.frame, "aria-label", `traffic between ${n} ${who}s: the arrow keys choose a link`);
    this.#draw(hosts);
    this.#say(who);
  }

  /** @param {Hosts} hosts */
  #draw(hosts) {
    const { groups, rates, states, top } = /** @type {Traffic} */ (this.traffic);
    const { canvas, cell, left } = this;
    const n = groups.length;
    const [width, height] = [left + n * cell + 1, ABOVE + n * cell + 1];
    const scale = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
      canvas.style.cssText = `width:${width}px;height:${height}px`;
    }
    const style = getComputedStyle(this.node);
    const colour = (/** @type {string} */ name) => style.getPropertyValue(`--arw-${name}`).trim();
    const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const fills = { idle: colour("line"), slow: colour("warn"), missing: colour("bad"), unknown: colour("border") };
    pen.strokeStyle = colour("border");
    const [accent, gap] = [colour("accent"), cell > 5 ? 1 : 0];
    for (let at = 0; at < n * n; at++) {
      const state = states[at];
      if (state === "none") continue;
      pen.globalAlpha = state === "busy" ? LEAST_SEEN + (1 - LEAST_SEEN) * (rates[at] / top) : 1;
      pen.fillStyle = state === "busy" ? accent : fills[state];
      const [x, y] = [left + (at % n) * cell + gap, ABOVE + Math.floor(at / n) * cell + gap];
      if (state === "unknown" && cell > 5) pen.strokeRect(x + 0.5, y + 0.5, cell - gap - 1, cell - gap - 1);
      else pen.fillRect(x, y, cell - gap, cell - gap);
    }
    pen.globalAlpha = 1;
    pen.fillStyle = pen.strokeStyle = colour("muted");
    pen.font = `11px ${style.fontFamily}`;
    pen.lineWidth = 1;
    if (!this.byHost) this.#numbers(pen, groups);
    this.#hosts(pen, hosts, groups);
    if (this.at !== null) {
      pen.strokeStyle = colour("fg");
      pen.lineWidth = 2;
      pen.strokeRect(left + (this.at % n) * cell, ABOVE + Math.floor(this.at / n) * cell, cell + 1, cell + 1);
    }
  }

  /**
   * @param {CanvasRenderingContext2D} pen
   * @param {import("./traffic.js").Group[]} groups
   */
  #numbers(pen, groups) {
    const wide = CHARACTER * String(groups.length - 1).length + 4;
    const every = [1, 2, 4, 8, 16, 32, 64].find((step) => step * this.cell >= Math.max(13, wide)) ?? 128;
    pen.textBaseline = "middle";
    groups.forEach(({ name }, i) => {
      if (i % every) return;
      const middle = (i + 0.5) * this.cell;
      pen.textAlign = "right";
      pen.fillText(name, this.left - 4, ABOVE + middle);
      pen.textAlign = "center";
      pen.fillText(name, this.left + middle, ABOVE - 8);
    });
  }

  /**
   * Names at the left, and lines between hosts.
   * @param {CanvasRenderingContext2D} pen
   * @param {Hosts} hosts
   * @param {import("./traffic.js").Group[]} groups
   */
  #hosts(pen, hosts, groups) {
    if (hosts.length < 2) return;
    const { cell, left } = this;
    const end = groups.length * cell;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    let begin = 0;
    hosts.forEach(({ host }, at) => {
      const rows = groups.filter((group) => group.host === at).length;
      const high = rows * cell;
      if (high >= 12) pen.fillText(short(host.name), 0, ABOVE + begin + high / 2, MOST_NAMED);
      begin += high;
      if (this.byHost || !rows || at === hosts.length - 1) return;
      pen.beginPath();
      pen.moveTo(left, ABOVE + begin + 0.5);
      pen.lineTo(left + end, ABOVE + begin + 0.5);
      pen.moveTo(left + begin + 0.5, ABOVE);
      pen.lineTo(left + begin + 0.5, ABOVE + end);
      pen.stroke();
    });
  }

  /** @param {string} who */
  #say(who) {
    const traffic = /** @type {Traffic} */ (this.traffic);
    const { rates, states, top, groups } = traffic;
    say(this.most, units.rate(top));
    for (const [state, node] of this.legend) node.hidden = !states.includes(/** @type {any} */ (state));
    const named = busiest(traffic, MOST_BUSIEST);
    const near = rates.filter((rate) => rate > 0 && rate >= NEAR * top).length;
    const many = near > 2 * MOST_BUSIEST; // of which five say nothing
    const lines = many ? [] : named.map((at) => `${this.#name(at)}: ${units.rate(rates[at])}`);
    const key = lines.join("\n");
    if (this.list.dataset.key !== key) {
      this.list.dataset.key = key;
      this.list.replaceChildren(...lines.map((line) => h("li", {}, line)));
    }
    this.list.hidden = !lines.length;
    const busy = rates.filter((rate) => rate > 0).length;
    const all = states.filter((state) => state !== "none").length;
    const what = who === "rank" ? "links" : "pairs of hosts";
    const equally = near === busy ? ", about equally" : `, ${units.count(near)} of them about equally`;
    say(this.calm, !busy ? `None of ${units.count(all)} ${what} carries anything.` : `${busy === all ? `All ${units.count(all)}` : `${units.count(busy)} of ${units.count(all)}`} ${what} are busy${many ? equally : ""}.`);
    if (this.at !== null && this.at >= groups.length ** 2) this.at = null;
    this.#tell();
  }

  /** @param {number} at @returns {string} `3 → 4`, `studio-1 → studio-2` */
  #name(at) {
    const { groups } = /** @type {Traffic} */ (this.traffic);
    return `${groups[Math.floor(at / groups.length)].name} → ${groups[at % groups.length].name}`;
  }

  #tell() {
    const { at, traffic } = this;
    if (at === null || !traffic) return say(this.readout, "Point at a field, or choose one with the arrow keys, to read its rate.");
    const links = linksAt(traffic, this.found, at);
    const text = links.length === 1 ? described(links[0])
      : `${this.#name(at)}: ${links.length ? `${units.rate(traffic.rates[at])} on ${links.length} links` : "no link"}`;
    say(this.readout, text);
    if (this.heard.dataset.at !== String(at)) say(this.heard, text);
    this.heard.dataset.at = String(at);
  }

  /** @param {number | null} at */
  #read(at) {
    if (at === this.at) return;
    this.at = at;
    for (const view of this.store.views) view("state");
  }

  /** @param {PointerEvent} event */
  #point(event) {
    const n = this.traffic?.groups.length ?? 0;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - this.left) / this.cell);
    const row = Math.floor((event.clientY - box.top - ABOVE) / this.cell);
    this.#read(Math.min(row, column) < 0 || Math.max(row, column) >= n ? null : row * n + column);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const n = this.traffic?.groups.length ?? 0;
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step || !n) return;
    event.preventDefault();
    event.stopPropagation();
    const [row, column] = this.at === null ? [0, 0] : [Math.floor(this.at / n) + step[0], (this.at % n) + step[1]];
    if (row >= 0 && column >= 0 && row < n && column < n) this.#read(row * n + column);
  }
}

/** @param {string} name without its domain */
const short = (name) => name.split(".")[0] || name;

/**
 * A link in one line: `3 → 4: 1.20 GB/s · 24 % of 40 Gbit/s · thunderbolt, en5`.
 * @param {LinkFinding} one
 */
export function described({ view, share, slow, missing }) {
  const { link } = view;
  const parts = [
    missing ? "missing" : units.rate(view.rate) + (slow ? " · slow" : ""),
    share === null ? "" : `${units.percent(share)} of ${units.bits(view.nominal)}`,
    [link.kind, link.interface].filter(Boolean).join(", "),
  ];
  return `${link.source} → ${link.target}: ${parts.filter(Boolean).join(" · ")}`;
}
