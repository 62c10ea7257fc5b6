// The dashboard as an anywidget: one model, any of the four pictures.

import "uplot/dist/uPlot.min.css";
import "./style.css";
import { Console } from "./console.js";
import { h, hide, icon, mark, say } from "./dom.js";
import { Glance } from "./glance.js";
import { capital, ofCurves, ofOutput, ofTopology, ofTraffic, ofTrouble, ofWorld } from "./headlines.js";
import { Log } from "./log.js";
import { openWindow } from "./own_window.js";
import { Section } from "./section.js";
import { advice, counts, findings, grouped, hostsOf, stateOf, worldState } from "./snapshot.js";
import { Status } from "./status.js";
import { storeOf } from "./store.js";
import { followTheme } from "./theme.js";
import { Throughput } from "./throughput.js";
import { Topology } from "./topology.js";
import { rankLabel } from "./units.js";
import { EFFECTS, MEANINGS } from "./words.js";

const PACE = 100; // ms between two drawings
const FIGURES_PACE = 500; // the same where only figures went on
const LOST = ["dead", "failed"]; // states to be seen first
const MOST_NAMED = 8; // of these ranks
const IN_ORDER = ["topology", "throughput", "log", "ranks"]; // of the views where more than two are shown
const COUNT_ON = 1000; // ms between two when only time goes on

/** @typedef {import("./types.js").Model} Model */
/** @typedef {import("./store.js").Change} Change */

/** @param {Set<Change>} changes whether more than output is to be drawn */
const ofSnapshot = (changes) => changes.has("state") || changes.has("figures");

/** @param {{model: Model}} given */
function initialize({ model }) {
  storeOf(model);
}

/** @param {{model: Model, el: HTMLElement, apart?: boolean}} given `apart`: in a window of its own */
function render({ model, el, apart = false }) {
  const store = storeOf(model);
  const root = h("div.root", { role: "region", "aria-label": "allranks" });
  const [world, states, notes] = [h("span.world"), h("span.states"), h("div.notes", { role: "status" })];
  const slow = h("span");
  const said = h("div.said", { role: "status" });
  const waiting = h("div.muted.none", {}, "No data from the ranks yet");
  // A picture and tables that stand for us in the saved notebook: outputs of their own, not needed while we are here.
  // JupyterLab shows an SVG as an image whose address is its text, which has an id; other pages have it in their own.
  const saved = `arw-saved-${model.get("key")}`;
  root.append(h("style", {}, `.${saved}, #${saved}, img[src*="${saved}"] { display: none }`));
  const silence = h("div.silence", { role: "status", hidden: true });
  const [problem, remedy] = [h("span.advice-text"), h("button.button", { type: "button" })];
  const advised = h("div.advice", { role: "status", hidden: true }, icon("warning"), problem, remedy);
  /** @type {import("./snapshot.js").Advice | null} */
  let advising = null;
  remedy.addEventListener("click", () => {
    for (const rank of advising?.ranks ?? []) store.act(advising?.verb ?? "", rank);
  });
  const glance = model.get("views").length > 1 && model.get("views").includes("log") ? new Glance() : null;
  /** @type {Set<() => void>} for the windows that were opened from here */
  const dressed = new Set();
  const open = () => {
    const dress = openWindow(store.model, root, `allranks · ${store.snapshot?.name ?? ""}`);
    if (dress) dressed.add(dress);
    else store.fail("The browser opened no window: allow this page to open some.");
  };
  const aside = apart || !model.get("_esm") ? null : h("button.save.aside", { type: "button", "aria-label": "Open in a window of its own", title: "Open in a window of its own", onclick: open }, icon("window"));
  root.append(h("div.head", {}, world, states, glance?.node ?? null, aside), silence, advised, notes, said, waiting);

  const straggler = h("div.finding.straggler", { hidden: true }, icon("waiting"), slow);
  root.append(straggler);

  /** @type {string[]} */
  const chosen = model.get("views");
  const low = chosen.length > 2; // what is seen first is to fit the screen, and details open
  const views = low ? IN_ORDER.filter((view) => chosen.includes(view)) : chosen;
  const sections = h("div.sections", { "data-overview": low, "data-log": "false" });
  root.append(sections);
  /** @type {((changes: Set<Change>) => void)[]} */
  const parts = [];
  /** @type {HTMLElement[]} */
  const ofRanks = [];
  /** @param {string} name @param {string} finding @returns {[string, string]} */
  const caption = (name, finding) => {
    // Charts and output say what they show, unless the world is in trouble.
    const first = name === "Topology" ? ofWorld : ofTrouble;
    const title = (store.snapshot && first(store.snapshot)) || (finding ? `${name}: ${finding}` : name);
    return [title, `${world.textContent} · allranks, ${new Date().toLocaleString()}`];
  };
  /**
   * @param {string} name
   * @param {{closed?: boolean, tools?: Node[], caption?: (finding: string) => [string, string]}} how
   * @param {Node[]} nodes
   */
  const section = (name, how, ...nodes) => {
    const made = new Section(name, { views, opened: () => again(), root, caption: (finding) => caption(name, finding), ...how }, ...nodes);
    sections.append(made.node);
    return made;
  };
  for (const view of views) {
    if (view === "topology") {
      const topology = new Topology(root, store, { low });
      const part = section("Topology", {}, topology.node);
      ofRanks.push(part.node);
      parts.push((those) => {
        if (!ofSnapshot(those)) return;
        if (part.open) topology.update();
        if (store.snapshot) part.say(ofTopology(store.snapshot, findings(store.snapshot)));
      });
    } else if (view === "ranks") {
      const [status, output] = [new Status(store), new Console(store)];
      const part = section("Ranks", { closed: views.length === IN_ORDER.length }, status.node, output.node);
      ofRanks.push(status.node);
      let selected = store.selected;
      parts.push((those) => {
        if (store.selected !== selected && store.selected !== null) part.show(); // a click on a rank shows its output
        selected = store.selected;
        if (part.open && ofSnapshot(those)) status.update();
        if (!those.has("output") && !those.has("state")) return;
        if (part.open) output.update();
        part.say(ofOutput(store.output));
      });
    } else if (view === "throughput") {
      const throughput = new Throughput(root, store, { low });
      const part = section("Throughput", { tools: throughput.tools, caption: (finding) => caption("Throughput", throughput.shows || finding) }, throughput.node);
      parts.push((those) => {
        if (!ofSnapshot(those)) return;
        if (part.open) throughput.update();
        if (store.snapshot) part.say(ofTraffic(store.snapshot));
      });
    } else if (view === "log") {
      const log = new Log(store, { low });
      const part = section("Log", { tools: log.tools }, log.node);
      let version = -1;
      parts.push((those) => {
        if (!ofSnapshot(those)) return;
        const out = views.length > 1 && !store.curves.count; // among other views it comes with the first figure
        hide(part.node, out);
        mark(sections, "data-log", String(!out));
        if (part.open && !out) log.update(); // it is as wide as it is only once it is shown
        if (store.curves.version !== version) part.say(ofCurves(store.curves));
        version = store.curves.version;
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
    glance?.update(store.curves, store.output.last?.n, snapshot.ranks.some((rank) => counts(stateOf(rank, store.behind))));
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
    const waits = advising || !views.includes("throughput") ? "" : capital(snapshot.straggler ?? "");
    say(slow, waits);
    hide(straggler, !waits);
    say(notes, lines);
    hide(notes, !lines);
    say(said, store.said);
    hide(said, !store.said);
    mark(said, "data-failed", String(store.failed));
  };

  let last = 0;
  let lastFigures = 0;
  let frame = 0;
  let timer = 0;
  let due = Infinity;
  /** @type {Set<Change>} that are not drawn yet */
  let changes = new Set();
  const draw = () => {
    const those = changes;
    [changes, frame, due, last] = [new Set(), 0, Infinity, performance.now()];
    const early = !those.has("state") && last < lastFigures + FIGURES_PACE - PACE;
    if (early && those.delete("figures")) soon("figures");
    if (ofSnapshot(those)) {
      lastFigures = last;
      head();
    }
    if (store.snapshot || store.output.version) for (const part of parts) part(those);
  };
  /** @param {Change} change */
  const soon = (change) => {
    changes.add(change);
    if (frame) return;
    const at = change === "figures" ? lastFigures + FIGURES_PACE : last + PACE;
    if (at >= due) return;
    due = at;
    clearTimeout(timer);
    const ask = () => {
      frame = requestAnimationFrame(draw);
    };
    const wait = at - performance.now();
    if (wait > 0) timer = window.setTimeout(ask, wait);
    else ask();
  };
  const again = () => soon("state");
  store.views.add(soon);
  const clock = setInterval(() => {
    const moving = store.silent !== (root.getAttribute("data-silent") === "true") || store.snapshot?.ranks.some((rank) => counts(rank.state ?? ""));
    if (moving && performance.now() - lastFigures >= COUNT_ON - 50 && !document.hidden) again();
  }, COUNT_ON);
  const sized = new ResizeObserver(again);
  sized.observe(root);
  const stop = followTheme(root, () => {
    for (const dress of dressed) dress();
    again();
  });
  changes.add("state");
  draw();
  return () => {
    store.views.delete(soon);
    clearInterval(clock);
    clearTimeout(timer);
    cancelAnimationFrame(frame);
    sized.disconnect();
    stop();
    if (apart) store.end();
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

