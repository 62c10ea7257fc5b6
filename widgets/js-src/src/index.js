// The dashboard as an anywidget: one model, any of the four pictures.

import "uplot/dist/uPlot.min.css";
import "./style.css";
import { Console } from "./console.js";
import { h, hide, icon, mark, say } from "./dom.js";
import { Glance } from "./glance.js";
import { Log } from "./log.js";
import { advice, counts, grouped, hostsOf, stateOf, worldState } from "./snapshot.js";
import { Status } from "./status.js";
import { storeOf } from "./store.js";
import { followTheme } from "./theme.js";
import { Throughput } from "./throughput.js";
import { Topology } from "./topology.js";
import { rankLabel } from "./units.js";
import { EFFECTS, MEANINGS } from "./words.js";

const PACE = 100; // ms between two drawings
const LOST = ["dead", "failed"]; // states to be seen first
const MOST_NAMED = 8; // of these ranks
const COUNT_ON = 1000; // ms between two when only time goes on

/** @typedef {import("./types.js").Model} Model */

/** @param {{model: Model}} given */
function initialize({ model }) {
  storeOf(model);
}

/** @param {{model: Model, el: HTMLElement}} given */
function render({ model, el }) {
  const store = storeOf(model);
  const root = h("div.root", { role: "region", "aria-label": "allranks" });
  const [world, states, notes] = [h("span.world"), h("span.states"), h("div.notes", { role: "status" })];
  const said = h("div.said", { role: "status" });
  const waiting = h("div.muted.none", {}, "No data from the ranks yet");
  // Tables that stand for the pictures in the saved notebook: an output of their own, not needed while we are here.
  root.append(h("style", {}, `.arw-saved-${model.get("key")} { display: none }`));
  const silence = h("div.silence", { role: "status", hidden: true });
  const [problem, remedy] = [h("span.advice-text"), h("button.button", { type: "button" })];
  const advised = h("div.advice", { role: "status", hidden: true }, icon("warning"), problem, remedy);
  /** @type {import("./snapshot.js").Advice | null} */
  let advising = null;
  remedy.addEventListener("click", () => {
    for (const rank of advising?.ranks ?? []) store.act(advising?.verb ?? "", rank);
  });
  const glance = model.get("views").length > 1 && model.get("views").includes("log") ? new Glance() : null;
  root.append(h("div.head", {}, world, states, glance?.node ?? null), silence, advised, notes, said, waiting);

  /** @type {(() => void)[]} */
  const parts = [];
  /** @type {HTMLElement[]} */
  const ofRanks = [];
  const section = (/** @type {string} */ name, /** @type {Node[]} */ ...nodes) => {
    const made = h("section.section", { "aria-label": name }, h("div.title", { role: "heading", "aria-level": 3 }, name), ...nodes);
    root.append(made);
    return made;
  };
  for (const view of model.get("views")) {
    if (view === "topology") {
      const topology = new Topology(root, store);
      ofRanks.push(section("Topology", topology.node));
      parts.push(() => topology.update());
    } else if (view === "ranks") {
      const [status, output] = [new Status(store), new Console(store)];
      section("Ranks", status.node, output.node);
      ofRanks.push(status.node);
      parts.push(() => status.update(), () => output.update());
    } else if (view === "throughput") {
      const throughput = new Throughput(store);
      section("Throughput", throughput.node);
      parts.push(() => throughput.update());
    } else if (view === "log") {
      const log = new Log(store);
      const part = section("Log", log.node);
      const alone = model.get("views").length === 1;
      parts.push(() => {
        hide(part, !alone && !store.curves.version); // among other pictures it comes with the first figure
        log.update();
      });
    }
  }
  el.append(root);

  const head = () => {
    const { snapshot } = store;
    hide(waiting, Boolean(snapshot));
    mark(root, "data-frames", store.frames);
    if (!snapshot) return;
    const size = snapshot.ranks.length;
    const hosts = hostsOf(snapshot).length;
    const where = hosts > 1 ? ` on ${hosts} hosts` : "";
    say(world, `${snapshot.name} · ${size} ${size === 1 ? "rank" : "ranks"}${where} · ${snapshot.backend} · ${worldState(snapshot)}`);
    tally(states, snapshot.ranks.map((rank) => ({ rank: rank.rank, state: stateOf(rank, store.behind) })));
    for (const part of ofRanks) hide(part, !size);
    glance?.update(store.curves);
    const { silent } = store;
    mark(root, "data-silent", String(silent));
    hide(silence, !silent);
    const at = new Date(Date.now() - performance.now() + store.heard).toLocaleTimeString();
    say(silence, !silent ? "" : store.gone
      ? `The kernel has ended or was restarted. This is what was last seen, at ${at}.`
      : `No message from the kernel since ${at}: it is busy outside Python, suspended, restarted, or out of reach.`);
    advising = silent ? null : advice(snapshot, store.behind);
    hide(advised, !advising);
    mark(advised, "data-kind", advising?.kind ?? "");
    say(problem, advising?.text ?? "");
    say(remedy, advising?.button ?? "");
    mark(remedy, "title", EFFECTS[advising?.verb ?? ""] ?? "");
    hide(remedy, !advising?.button);
    remedy.disabled = !store.acts;
    // What the advice has a button for need not be said twice.
    const lines = (snapshot.notes ?? []).filter((note) => advising?.verb !== "heal" || !note.includes("%distributed heal")).join("\n");
    say(notes, lines);
    hide(notes, !lines);
    say(said, store.said);
    hide(said, !store.said);
    mark(said, "data-failed", String(store.failed));
  };

  let last = 0;
  let frame = 0;
  let timer = 0;
  const draw = () => {
    frame = 0;
    last = performance.now();
    head();
    if (store.snapshot || store.output.version) for (const part of parts) part();
  };
  const soon = () => {
    if (frame || timer) return;
    const wait = PACE - (performance.now() - last);
    const ask = () => {
      timer = 0;
      frame = requestAnimationFrame(draw);
    };
    if (wait > 0) timer = window.setTimeout(ask, wait);
    else ask();
  };
  store.views.add(soon);
  const clock = setInterval(() => {
    const moving = store.silent !== (root.getAttribute("data-silent") === "true") || store.snapshot?.ranks.some((rank) => counts(rank.state ?? ""));
    if (moving && performance.now() - last >= COUNT_ON - 50 && !document.hidden) soon();
  }, COUNT_ON);
  const sized = new ResizeObserver(soon);
  sized.observe(root);
  const stop = followTheme(root, soon);
  draw();
  return () => {
    store.views.delete(soon);
    clearInterval(clock);
    clearTimeout(timer);
    cancelAnimationFrame(frame);
    sized.disconnect();
    stop();
  };
}

/**
 * How many ranks are in which state. Those that failed or died come first, by name and with an icon.
 * @param {HTMLElement} node
 * @param {{rank: number, state: string}[]} ranks
 */
function tally(node, ranks) {
  const by = grouped(ranks, ({ state }) => state);
  const states = [...LOST.filter((state) => by.has(state)), ...[...by.keys()].filter((state) => !LOST.includes(state))];
  const parts = states.map((state) => {
    const those = (by.get(state) ?? []).map(({ rank }) => rank);
    const lost = LOST.includes(state);
    const who = !lost ? String(those.length) : those.length > MOST_NAMED ? `${those.length} ranks` : rankLabel(those);
    return { state, lost, text: `${who} ${state}` };
  });
  const key = parts.map(({ text }) => text).join("\n");
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  const [lost, others] = [parts.filter((part) => part.lost), parts.filter((part) => !part.lost)];
  node.replaceChildren(
    ...lost.flatMap(({ state, text }) => [h("span.lost", { title: MEANINGS[state] }, icon(state), text), " "]),
    ...others.flatMap(({ state, text }, i) => [i ? ", " : "", h("span", { title: MEANINGS[state] }, text)]),
  );
}

export default { initialize, render };

