// Hosts, the ranks on them, and what travels on the links between.

import { LEAST_WIDTH, h, hide, icon, mark, say, setIcon, svg, widthOf } from "./dom.js";
import { mean } from "./history.js";
import { ofTrouble } from "./headlines.js";
import { headOf, layout, layoutWithin } from "./layout.js";
import { shortNames } from "./host_names.js";
import { Matrix, described } from "./matrix.js";
import { openMenu, rankItems } from "./menu.js";
import { route } from "./routes.js";
import { collective, counts, doing, fastest, findings, gpusOf, hostsOf, kindOf, missing, shapeOf, stateOf, sum, thickness, wiresOf } from "./snapshot.js";
import { Tooltip } from "./tooltip.js";
import * as units from "./units.js";
import { MACHINES, MEANINGS } from "./words.js";

/** @typedef {import("./types.js").Snapshot} Snapshot */
/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./snapshot.js").LinkFinding} LinkFinding */
/** @typedef {{ node: HTMLElement, update: () => void }} Card */

const CHARACTER = { rate: 6.7, caption: 6.2, what: 6.4, name: 7.6 }; // pixels, at the most, in the fonts of the pages
const ALSO_LOAD = 620; // pixels of a host's head from which on it has room for its load beside its GPU's
const BARE = 122; // pixels of a small host that its sign and a figure with its label take beside the name
const LEAST_SIGN = 156; // pixels of a host from which on there is room for what kind of machine it is
const MOST_DRAWN = 600; // links: a ring of 256, or a mesh of 16
const MOST_STRONG = 12; // links of a mesh: one of 4
const MOST_TIPPED = 60; // links of a mesh: one of 8
const MOST_MOVING = 16; // links whose dashes move with each snapshot: the page has to draw all of them again
const STEP = 3; // pixels that they move: not an animation, for which the page would work 60 times a second
const DASH = 12; // pixels from one dash to the next (style.css)
const MOST_LISTED = 200;
const MOST_TOLD = 8; // links of a rank, beside it
const MOST_TRIES = 3; // of names of hosts, since letters differ in width
const HIGHEST = { stacked: 300, beside: 380 }; // pixels of the plan where height is scarce: above the charts, and beside them
const BESIDE = 1060; // pixels of the dashboard from which on they stand beside it (style.css)

export class Topology {
  /**
   * @param {HTMLElement} root
   * @param {Store} store
   * @param {{low?: boolean}} [how] `low` where height is scarce
   */
  constructor(root, store, { low = false } = {}) {
    this.root = root;
    this.low = low;
    this.store = store;
    this.key = "";
    /** @type {ReturnType<typeof hostsOf>} */
    this.hosts = [];
    /** @type {Map<string, string>} names of hosts that are cut, in short */
    this.short = new Map();
    /** @type {Map<number, import("./types.js").RankView>} */
    this.ranks = new Map();
    /** @type {Set<number>} ranks that others wait for */
    this.late = new Set();
    /** @type {number | null} the rank that others wait for longest, while they wait for none in particular */
    this.slowest = null;
    /** @type {Map<number, Card>} of each rank: they stay when the plan is drawn again, and so do the focus and a click */
    this.cards = new Map();
    this.size = "large"; // of the cards
    /** @type {Element[]} the rest of the plan */
    this.behind = [];
    this.top = fastest([]);
    /** @type {((snapshot: Snapshot, found: LinkFinding[]) => void)[]} */
    this.updates = [];
    /** @type {(() => string)[]} of the heads of hosts: each returns which figures stand beside the name */
    this.heads = [];
    this.figures = ""; // beside all names, when these were measured
    this.travelled = 0; // pixels that the dashes have moved since they last stood as now
    /** @type {Snapshot | null} for which they have moved last */
    this.moved = null;
    this.mapped = false; // whether links are too many, or too long, to be drawn
    /** @type {LinkFinding[]} */
    this.found = [];
    this.tooltip = new Tooltip(root);
    this.matrix = new Matrix(store);
    this.plan = h("div.plan", { "data-low": low });
    this.findings = h("div.findings", { role: "status" });
    this.listed = h("tbody");
    this.summary = h("summary");
    const heads = ["link", "kind", "interface", "nominal", "rate", "of nominal", "sent", "round trip", "resent"];
    const head = h("tr", {}, ...heads.map((name, i) => h(i > 2 ? "th.figure" : "th", { scope: "col" }, name)));
    const table = h("table.table", {}, h("thead", {}, head), this.listed);
    this.note = h("div.muted");
    this.scroll = h("div.table-scroll", { tabindex: 0, role: "region", "aria-label": "links" }, table);
    const more = [this.matrix.node, this.findings]; // what the head of the section says in short opens with the links
    this.details = h("details.links", { ontoggle: () => this.update() }, this.summary, ...(low ? more : []), this.scroll, this.note);
    this.node = h("div.topology", {}, h("div.plan-scroll", { tabindex: 0, role: "region", "aria-label": "hosts and ranks" }, this.plan), ...(low ? [] : more), this.details);
  }

  update() {
    const { snapshot } = this.store;
    if (!snapshot) return;
    const width = Math.max(LEAST_WIDTH, Math.floor(widthOf(this.node, () => this.update()) || 800));
    const links = snapshot.links ?? [];
    const hosts = hostsOf(snapshot);
    const beside = this.low && widthOf(this.root, () => this.update()) - 34 >= BESIDE;
    const key = JSON.stringify([
      width, beside, hosts.some(({ host }) => host.interface), hosts.map(({ host, ranks }) => [host.name, ranks.map((rank) => rank.rank)]),
      links.length > MOST_DRAWN ? links.length : links.map(({ link }) => [link.source, link.target]),
    ]);
    const built = key !== this.key;
    if (built) this.#build(snapshot, width, beside);
    this.key = key;
    const found = (this.found = findings(snapshot));
    if (snapshot !== this.moved) this.travelled = (this.travelled + STEP) % DASH;
    this.moved = snapshot;
    this.hosts = hosts;
    this.ranks = new Map(snapshot.ranks.map((rank) => [rank.rank, rank]));
    this.top = fastest(links);
    this.late = new Set(missing(snapshot)?.ranks.map((rank) => rank.rank));
    this.slowest = ofTrouble(snapshot) ? null : (snapshot.straggler_rank ?? null);
    mark(this.plan, "data-hangs", String(this.late.size > 0));
    for (const update of this.updates) update(snapshot, found);
    this.#updateHeads(built);
    hide(this.matrix.node, !this.mapped);
    if (this.mapped && (!this.low || this.details.open)) this.matrix.update(found, hosts, width);
    this.tooltip.update();
    this.#say(found);
    this.#list(found);
  }

  /**
   * Draw the heads of hosts. Names are measured for each plan, and where other figures stand beside them, but not for
   * each frame.
   * @param {boolean} built whether the plan is a new one
   */
  #updateHeads(built) {
    const drawAll = () => this.heads.map((update) => update()).join();
    const figures = drawAll();
    if (!built && figures === this.figures) return;
    this.figures = figures;
    if (this.short.size) {
      this.short.clear();
      drawAll();
    }
    this.#shorten(drawAll);
  }

  /**
   * Where a host's name is cut, shorten those of all hosts so that they still differ.
   * @param {() => void} drawAll
   */
  #shorten(drawAll) {
    const nodes = this.behind.map((node) => node.querySelector(".arw-host-name")).filter((node) => node !== null);
    const names = this.hosts.map(({ host }) => host.name);
    for (let tries = 0; tries < MOST_TRIES; tries++) {
      const cut = nodes.filter((node) => node.scrollWidth > node.clientWidth);
      if (!cut.length) return;
      const room = Math.min(...cut.map((node) => ((node.textContent ?? "").length * node.clientWidth) / node.scrollWidth));
      shortNames(names, room).forEach((name, i) => this.short.set(names[i], name));
      drawAll();
    }
  }

  /**
   * Draw the plan, again where the page has changed its width, as it may at any moment.
   * @param {Snapshot} snapshot
   * @param {number} width
   * @param {boolean} beside whether the charts stand beside it
   */
  #build(snapshot, width, beside) {
    const hosts = hostsOf(snapshot);
    const shape = shapeOf(snapshot);
    const links = snapshot.links ?? [];
    const wires = Math.max(1, ...wiresOf(links).map((one) => one.nth + 1));
    const network = hosts.some(({ host }) => host.interface);
    const groups = hosts.map((one) => one.ranks.map((rank) => rank.rank));
    const plan = this.low ? layoutWithin(groups, shape, width, { wires }, beside ? HIGHEST.beside : HIGHEST.stacked) : layout(groups, shape, width, { wires, network });
    this.updates = [];
    this.heads = [];
    this.short.clear();
    this.tooltip.hide();
    const lines = svg("svg", {
      class: "arw-lines", width: plan.width, height: plan.height, role: "img",
      "aria-label": `${snapshot.ranks.length} ranks on ${hosts.length} ${hosts.length === 1 ? "host" : "hosts"}, ${
        { ring: "connected in a ring", mesh: "each connected to all others", none: "no links known" }[shape]}`,
    });
    for (const node of this.behind) node.remove();
    this.behind = [...hosts.map((_, i) => this.#host(plan, i)), lines];
    this.plan.prepend(...this.behind);
    for (const [rank, { node }] of this.cards) {
      if (plan.ranks.has(rank)) continue;
      node.remove();
      this.cards.delete(rank);
    }
    this.size = plan.size;
    for (const { rank } of snapshot.ranks) {
      const box = plan.ranks.get(rank);
      if (!box) continue;
      if (!this.cards.has(rank)) this.cards.set(rank, this.#card(rank));
      const one = /** @type {Card} */ (this.cards.get(rank));
      one.node.className = `arw-rank arw-rank-${plan.size}`;
      one.node.setAttribute("style", `left:${box.x}px;top:${box.y}px;width:${box.w}px;height:${box.h}px`);
      this.updates.push(one.update);
    }
    this.plan.style.width = `${plan.width}px`;
    this.plan.style.height = `${plan.height}px`;
    this.mapped = links.length > MOST_DRAWN || (links.length > 0 && Boolean(plan.left));
    if (!this.mapped) this.#links(links, plan, lines, wires);
  }

  /**
   * @param {import("./layout.js").Layout} plan
   * @param {number} i
   */
  #host(plan, i) {
    const { x, y, w, h: height, headAtBottom } = plan.hosts[i];
    const drawn = icon("machine");
    const sign = h("span.host-kind", { role: "img" }, drawn);
    const [name, whole, what, memory, load] = [h("span.host-name"), h("span.host-whole"), h("span.host-what"), h("span"), h("span")];
    const [used, busy, computing] = [h("span.meter-fill"), h("span.meter-fill"), h("span.meter-fill")];
    const [unit, computed] = [h("span.label"), h("span")];
    const [port, moved] = [h("span.label"), h("span")];
    const network = h("span.figure-pair.host-network", { hidden: true }, port, moved);
    const held = h("span.figure-pair.host-memory", {}, h("span.label", {}, "memory"), h("span.meter", { "aria-hidden": true }, used), memory);
    const loaded = h("span.figure-pair", {}, h("span.label", {}, "load"), h("span.meter", { "aria-hidden": true }, busy), load);
    const gpu = h("span.figure-pair.host-gpu", { hidden: true }, unit, h("span.meter", { "aria-hidden": true }, computing), computed);
    const head = h(
      "div.host-head", { style: `height:${plan.head}px` },
      h("div.host-title", {}, sign, whole, name, what),
      h("div.host-figures", {},
        held,
        loaded,
        gpu),
      h("div.host-figures", {}, network),
    );
    this.heads.push(() => {
      const host = this.hosts[i]?.host;
      if (!host) return "";
      const short = this.short.get(host.name) ?? host.name;
      say(name, short);
      mark(name, "aria-hidden", String(short !== host.name)); // screen readers get all of it
      say(whole, short === host.name ? "" : host.name);
      const kind = kindOf(host, this.hosts[i].ranks);
      setIcon(drawn, kind);
      hide(sign, w < LEAST_SIGN);
      mark(sign, "aria-label", MACHINES[kind]);
      mark(sign, "title", MACHINES[kind]);
      const cores = host.cores ? `${host.cores} cores` : "";
      const forms = [[host.model, host.chip, cores], [host.chip, cores], [host.model], [host.chip], [cores]].map((words) => words.filter(Boolean).join(" · "));
      const told = forms[0] || "machine unknown";
      if (!this.low) say(what, fitting([told, ...forms], w - 60 - short.length * CHARACTER.name, CHARACTER.what));
      if (!this.low) mark(what, "title", told);
      mark(name, "title", [short === host.name ? "" : host.name, this.low ? told : ""].filter(Boolean).join(" · "));
      const known = host.memory !== undefined && host.memory_used !== undefined;
      const of = known ? `${units.bytes(host.memory_used)} of ${units.bytes(host.memory)}` : units.UNKNOWN;
      say(memory, this.low && known ? units.percent((host.memory_used ?? 0) / (host.memory || 1)) : !known && host.memory !== undefined ? `${units.bytes(host.memory)}, used unknown` : of);
      mark(held, "title", `memory ${of}`);
      used.style.width = known ? `${(100 * (host.memory_used ?? 0)) / (host.memory || 1)}%` : "0";
      say(load, units.percent(host.load));
      mark(head, "data-bare", String(w < BARE + short.length * CHARACTER.name));
      mark(loaded, "title", [
        `load ${load.textContent}`, host.temperature ? `${host.temperature} °C` : "", host.throttled ? "too hot, slowed down" : "",
        host.swap_rate ? `swaps ${units.rate(host.swap_rate)}` : "",
      ].filter(Boolean).join(" · "));
      const gpus = gpusOf(this.hosts[i].ranks);
      hide(gpu, !gpus.length);
      hide(loaded, gpus.length > 0 && w < ALSO_LOAD);
      if (gpus.length) {
        const busy = mean(gpus.map((each) => each.gpu.load));
        const held = `${units.bytes(sum(gpus.map((each) => each.gpu.memory_used)))} of ${units.bytes(sum(gpus.map((each) => each.gpu.memory)))}`;
        say(unit, gpus.length > 1 ? `${gpus.length} GPUs` : "GPU");
        say(computed, w < ALSO_LOAD ? units.percent(busy) : `${units.percent(busy)}, ${held}`);
        computing.style.width = `${100 * (busy ?? 0)}%`;
        mark(gpu, "title", gpus.map(gpuInWords).join("\n"));
      }
      hide(network, !host.interface || this.low);
      say(port, host.interface ?? "");
      mark(network, "title", `${host.interface}: all traffic of the interface, from every program`);
      say(moved, `↑ ${units.rate(host.sent_rate)} ↓ ${units.rate(host.received_rate)}`);
      busy.style.width = `${100 * Math.min(1, host.load ?? 0)}%`;
      return [known, host.memory !== undefined, host.load !== undefined, gpus.length, gpu.hidden || computed.textContent === units.UNKNOWN].join(" ");
    });
    const style = `left:${x}px;top:${y}px;width:${w}px;height:${height}px`;
    return h(headAtBottom ? "div.host.host-turned" : "div.host", { style, "data-head": headOf(w) }, head);
  }

  /**
   * Put a rank's card into the plan.
   * @param {number} rank
   * @returns {Card}
   */
  #card(rank) {
    const [word, what, blame] = [h("span.state"), h("span.doing"), h("span.blame", { hidden: true })];
    const sign = icon("starting");
    const main = h(
      "button.rank-main",
      {
        type: "button", onclick: () => this.store.select(rank), onblur: () => this.tooltip.hide(),
        onfocus: () => main.matches(":focus-visible") && this.tooltip.show(node, () => this.#rates((one) => one.view.link.source === rank)),
      },
      // With blanks, as in its label: else its words are one word for who hears them.
      h("span.rank-top", {}, h("span.number", {}, String(rank)), " ", sign, word), " ", what, " ", blame,
    );
    const more = h(
      "button.more",
      {
        type: "button", "aria-haspopup": "menu", "aria-expanded": "false", "aria-label": `Actions for rank ${rank}`,
        onclick: () => openMenu(this.root, more, `rank ${rank}`, rankItems(rank, this.store)),
      },
      icon("more"),
    );
    const node = h("div.rank", { "data-rank": rank }, main, more);
    this.plan.append(node);
    const update = () => {
      const view = this.ranks.get(rank);
      if (!view) return;
      const large = this.size === "large";
      const state = stateOf(view, this.store.behind);
      mark(node, "data-state", state);
      const late = this.late.has(rank);
      mark(node, "data-late", String(late));
      const slowest = this.slowest === rank;
      mark(node, "data-slowest", String(slowest));
      // A failed rank is red anyway, and its cause says more than its line.
      const blamed = late && state !== "failed";
      setIcon(sign, blamed ? "warning" : state);
      say(word, state);
      const since = counts(state) && view.since !== undefined ? view.since + this.store.behind : 0;
      const time = since >= 1 ? units.lasted(since) : ""; // below that it would come and go with each line
      const one = view.state === "waiting" ? view.collective : null;
      const line = blamed && !one && view.line ? `line ${view.line}` : "";
      const count = line ? this.store.output.running(rank)?.count : null;
      const where = line && typeof count === "number" ? `In[${count}], ${line}` : line;
      const did = where || (one ? collective(one) : doing(view));
      // There is no room for the shape of a collective, or for more of a cause.
      const short = where || (one ? `${one.op} #${one.number}` : did.split("; last seen")[0]);
      say(what, large ? short : line || state);
      const words = late ? "others wait for it" : slowest ? "others waited longest" : "";
      say(blame, words);
      hide(blame, !large || !(blamed || slowest));
      // The style sheet draws the seconds: in the button's name they would be read out again and again.
      mark(what, "data-time", !large || blamed ? "" : time && (did ? ` · ${time}` : time));
      const told = [`rank ${rank}`, state, did, words].filter(Boolean).join(", ");
      mark(main, "aria-label", told);
      mark(main, "title", [told, where && view.source?.trim(), MEANINGS[state]].filter(Boolean).join(". "));
      mark(main, "aria-pressed", String(this.store.selected === rank));
    };
    return { node, update };
  }

  /**
   * @param {import("./types.js").LinkView[]} links
   * @param {import("./layout.js").Layout} plan
   * @param {SVGElement} lines
   * @param {number} wires
   */
  #links(links, plan, lines, wires) {
    const faint = plan.shape === "mesh" && links.length > MOST_STRONG;
    mark(lines, "data-faint", String(faint));
    const moves = links.length <= MOST_MOVING;
    mark(lines, "data-moves", String(moves));
    const size = plan.ranks.size;
    const those = wiresOf(links);
    links.forEach(({ link }, i) => {
      const { nth, all } = those[i];
      const way = route(plan, link.source, link.target, nth, wires);
      if (!way) return;
      const [path, tip] = [svg("path", { class: "arw-line", d: way.d, "data-from": link.source, "data-to": link.target }), svg("path", { class: "arw-tip", d: links.length > MOST_TIPPED && plan.shape === "mesh" ? "" : way.tip })];
      lines.append(path, tip);
      if (nth === 0 && (link.source < link.target || !links.some((one) => one.link.source === link.target && one.link.target === link.source)))
        lines.append(this.#pointed(link, way.d));
      const { place } = way;
      const onward = (link.target - link.source + size) % size === 1 && (size > 2 || link.source === 0);
      const label = place && svg("text", { ...labelAt(place, wires), class: "arw-rate", "data-kind": link.kind });
      const caption = place && onward && !place.low && svg("text", { ...captionAt(place, wires), class: "arw-caption" });
      lines.append(...[label, caption].filter(Boolean));
      const back = links.findIndex((one) => one.link.source === link.target && one.link.target === link.source);
      this.updates.push((now, found) => {
        const one = found[i];
        const rate = one.view.rate ?? 0;
        const state = one.missing ? "missing" : one.slow ? "slow" : rate > 0 ? "busy" : "idle";
        mark(path, "data-link", state);
        mark(tip, "data-link", state);
        const thick = thickness(one.view, this.top);
        const drawn = faint && !one.missing && !one.slow ? Math.max(1, thick / 2) : thick;
        mark(path, "stroke-dashoffset", String(moves && state === "busy" ? -this.travelled : 0));
        mark(path, "stroke-width", (Math.round(4 * drawn) / 4).toFixed(2)); // in steps that are seen: each is laid out
        if (label) {
          const towards = !place.upright ? "" : place.onward ? "↓ " : "↑ ";
          const texts = all.length > 1 ? [units.rate(sum(sameEnds(now, link).map((view) => view.rate)))] : [rateAndShare(one), units.rate(one.view.rate)];
          const slow = one.slow ? texts.map((text) => `slow · ${text}`) : [];
          // Of links that are not there no rate is unknown: there is none.
          say(label, now.state === "planned" || (now.state === "broken" && (one.view.rate ?? null) === null) ? "" : fitting([...slow, ...texts].map((text) => towards + text), place.room, CHARACTER.rate));
          mark(label, "data-link", state);
        }
        if (caption) say(caption, label?.textContent ? fitting(all.length > 1 ? cables(sameEnds(now, link)) : plugs(one.view, now.links?.[back]), place.room, CHARACTER.caption) : "");
      });
    });
  }

  /**
   * A wide line that is not seen: pointing at it says what the links of its two ranks carry.
   * @param {import("./types.js").LinkView["link"]} link
   * @param {string} d
   */
  #pointed(link, d) {
    const ends = [link.source, link.target];
    const line = svg("path", { class: "arw-pointed", d });
    line.addEventListener("pointermove", (/** @type {PointerEvent} */ event) =>
      this.tooltip.show(line, () => this.#rates(({ view }) => ends.includes(view.link.source) && ends.includes(view.link.target)), { x: event.clientX, y: event.clientY }));
    line.addEventListener("pointerleave", () => this.tooltip.hide());
    return line;
  }

  /**
   * The rates of some links, a line for each.
   * @param {(one: LinkFinding) => boolean} chosen
   */
  #rates(chosen) {
    const links = this.found.filter(chosen);
    const more = links.length - MOST_TOLD;
    if (more > 0) links.sort((one, other) => (other.view.rate ?? -1) - (one.view.rate ?? -1));
    return [...links.slice(0, MOST_TOLD).map(described), ...(more > 0 ? [`and ${more} more: see the table of links`] : [])];
  }

  /** @param {LinkFinding[]} found */
  #say(found) {
    const said = found.filter((one) => one.why);
    const lines = said.slice(0, 4).map((one) => one.why);
    if (said.length > 4) lines.push(`and ${said.length - 4} more: see the table of links`);
    const key = lines.join("\n");
    if (this.findings.dataset.key === key) return;
    this.findings.dataset.key = key;
    this.findings.replaceChildren(...lines.map((line) => h("div.finding", {}, icon("warning"), h("span", {}, line))));
  }

  /** @param {LinkFinding[]} found */
  #list(found) {
    hide(this.details, !found.length);
    const known = found.filter((one) => one.view.rate !== null && one.view.rate !== undefined);
    const total = known.reduce((all, one) => all + (one.view.rate ?? 0), 0);
    const partly = known.length < found.length ? `, ${found.length - known.length} unknown` : "";
    say(this.summary, [`${units.counted(found.length, "link")}${partly}`, known.length ? `${units.rate(total)} in all` : ""].filter(Boolean).join(" · "));
    if (!this.details.open) return;
    let shown = found;
    if (found.length > MOST_LISTED) {
      const order = [...found].sort((a, b) => Number(Boolean(b.why)) - Number(Boolean(a.why)) || (b.view.rate ?? -1) - (a.view.rate ?? -1));
      shown = order.slice(0, MOST_LISTED);
    }
    say(this.note, found.length > MOST_LISTED ? `The ${MOST_LISTED} with findings or the highest rates, of ${found.length}.` : "");
    while (this.listed.rows.length > shown.length) this.listed.deleteRow(-1);
    while (this.listed.rows.length < shown.length)
      this.listed.append(h("tr", {}, ...Array.from({ length: 9 }, (_, i) => h(i > 2 ? "td.figure" : "td"))));
    shown.forEach(({ view, share, slow, missing }, i) => {
      const { link } = view;
      const cells = this.listed.rows[i].cells;
      const texts = [
        `${link.source} → ${link.target}`, link.kind + (slow ? " · slow" : missing ? " · missing" : ""),
        link.interface ?? units.UNKNOWN, units.bits(view.nominal), units.rate(view.rate), units.percent(share),
        units.bytes(view.sent), units.seconds(view.rtt), view.retransmits === undefined ? units.UNKNOWN : units.count(view.retransmits),
      ];
      texts.forEach((text, k) => say(cells[k], text));
      mark(this.listed.rows[i], "data-link", slow ? "slow" : missing ? "missing" : "");
    });
  }
}

/** @param {LinkFinding} one */
function rateAndShare(one) {
  return units.rate(one.view.rate) + (one.share === null ? "" : ` · ${units.percent(one.share)}`);
}

/**
 * The cables of the same two ranks.
 * @param {Snapshot} now
 * @param {import("./types.js").LinkView["link"]} link
 */
const sameEnds = (now, link) => (now.links ?? []).filter((one) => one.link.source === link.source && one.link.target === link.target);

/**
 * The first text for which there is room, else none.
 * @param {string[]} texts
 * @param {number} room
 * @param {number} character the width of one
 */
const fitting = (texts, room, character) => texts.find((text) => text.length * character <= room) ?? "";

/** @param {ReturnType<typeof gpusOf>[number]} one what its driver says of a GPU */
function gpuInWords({ gpu, ranks }) {
  const load = gpu.load === undefined ? "" : `${units.percent(gpu.load)} busy`;
  const memory = gpu.memory_used === undefined ? "" : `${units.bytes(gpu.memory_used)} of ${units.bytes(gpu.memory)}`;
  const heat = [gpu.temperature === undefined ? "" : `${gpu.temperature} °C`, gpu.throttled ? "too hot, slowed down" : ""];
  const power = gpu.power === undefined ? "" : `${gpu.power} W`;
  return [`${gpu.name || "GPU"} (${units.rankLabel(ranks)})`, load, memory, power, ...heat].filter(Boolean).join(" · ");
}

/**
 * @param {import("./types.js").LinkView[]} all of the same two ranks
 * @returns {string[]} the longest first
 */
function cables(all) {
  const [first] = all;
  const short = `${first.link.kind} · ${all.length} cables`;
  return [...(first.nominal ? [`${short} · ${units.bits(first.nominal)} each`] : []), short, `${all.length} cables`];
}

/**
 * The plugs at both ends and what the cable is.
 * @param {import("./types.js").LinkView} there
 * @param {import("./types.js").LinkView | undefined} back
 * @returns {string[]} the longest first
 */
function plugs(there, back) {
  const ends = [there.link.interface, back?.link.interface].filter(Boolean);
  const both = ends.length === 2 && ends[0] !== ends[1] ? ends.join(" ↔ ") : (ends[0] ?? "");
  const { kind } = there.link;
  const parts = [[kind, both, there.nominal ? units.bits(there.nominal) : ""], [kind, both], [both], [kind]];
  return parts.map((words) => words.filter(Boolean).join(" · "));
}

/**
 * @param {import("./routes.js").Place} place
 * @param {number} wires
 */
function labelAt({ x, y, upright, inward, onward }, wires) {
  if (upright) return { x: x + inward * (9 + 5 * wires), y: onward ? y + 9 : y - 7, "text-anchor": inward > 0 ? "start" : "end" };
  return { x, y: onward ? y + 14 + 5 * wires : y - 5 - 5 * wires, "text-anchor": "middle" };
}

/**
 * @param {import("./routes.js").Place} place
 * @param {number} wires
 */
function captionAt(place, wires) {
  const at = labelAt({ ...place, onward: true }, wires);
  return { ...at, y: at.y + 15 };
}
