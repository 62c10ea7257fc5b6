// What one model of the kernel has sent, shared by all its views on the page.

import { Curves } from "./curves.js";
import { History } from "./history.js";
import { Output } from "./output.js";
import { sameStanding } from "./snapshot.js";
import { LATE } from "./words.js";

/** @typedef {import("./types.js").Snapshot} Snapshot */
/** @typedef {import("./types.js").Model} Model */
/** @typedef {"state" | "figures" | "output"} Change what another message brought: `state` for all that is to be seen at
 *   once, `figures` where only rates, counters and curves went on, `output` where ranks put something out */

const ASK_AGAIN = 3000; // ms
const SILENT_AFTER = 3000; // ms without a message, where one is due every second
const SELECT = "allranks-select";
const decoder = new TextDecoder();

/** @type {Map<string, Store>} by the widget's key: anywidget hands out another proxy of the model to each view */
const stores = new Map();

/** @param {Model} model @returns {Store} */
export function storeOf(model) {
  const key = model.get("key");
  let store = stores.get(key);
  if (!store) stores.set(key, (store = new Store(model)));
  return store;
}

/** @param {any} buffer a DataView, as the widget manager hands it over */
function decode(buffer) {
  return decoder.decode(buffer.buffer ? new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength) : buffer);
}

export class Store {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    this.page = Math.random().toString(36).slice(2);
    /** @type {Snapshot | null} */
    this.snapshot = null;
    this.received = 0;
    this.heard = 0; // when the last message of any kind came
    this.beats = false; // whether the kernel sends one every second
    this.gone = false; // whether the kernel ended or was started again
    this.age = 0; // seconds the frame had when it came
    this.frames = 0;
    this.history = new History();
    this.output = new Output();
    this.curves = new Curves();
    this.acts = true;
    /** @type {number | null} */
    this.selected = null;
    this.said = "";
    this.failed = false;
    this.number = -1; // of the last message of output; -1 until everything has come
    this.answered = false;
    /** @type {Set<(change: Change) => void>} */
    this.views = new Set();
    /** @type {[string, (...args: any[]) => void][]} */
    this.hears = [
      ["change:frame", () => this.#frame()],
      ["comm_live_update", () => {
        this.gone = this.heard > 0;
        this.#tell();
      }],
      ["msg:custom", (content, buffers) => this.#message(content, buffers)],
    ];
    for (const [name, heard] of this.hears) model.on(name, heard);
    window.addEventListener(SELECT, (event) => this.#selected(/** @type {CustomEvent} */ (event).detail));
    this.#frame();
    this.#askAll();
  }

  /** Seconds since the last frame was made; they stand still while nothing is heard. */
  get behind() {
    return this.age + ((this.silent ? this.heard : performance.now()) - this.received) / 1000;
  }

  /** Whether what is shown may no longer be so: nothing has been heard from the kernel for some seconds. */
  get silent() {
    const due = this.beats && this.snapshot?.state !== "down";
    return this.snapshot !== null && (this.gone || (due && performance.now() - this.heard > SILENT_AFTER));
  }

  /** Take no more messages, as where the page is closed and the model lives on. */
  end() {
    for (const [name, heard] of this.hears) this.model.off(name, heard);
  }

  /** @param {string} text why what the reader asked for was not done */
  fail(text) {
    [this.said, this.failed] = [text, true];
    this.#tell();
  }

  /** @param {number | null} rank */
  select(rank) {
    const name = this.snapshot?.name;
    window.dispatchEvent(new CustomEvent(SELECT, { detail: { name, rank: rank === this.selected ? null : rank } }));
  }

  /**
   * Ask for an action on a rank.
   * @param {string} verb
   * @param {number | null} rank
   */
  act(verb, rank) {
    this.said = `${verb}${rank === null ? "" : ` of rank ${rank}`} requested …${this.#controlled() ? "" : ` ${LATE}`}`;
    this.failed = false;
    this.#ask({ ask: verb, rank });
    this.#tell();
  }

  #askAll() {
    this.number = -1;
    this.answered = false;
    this.#ask({ ask: "all" });
    setTimeout(() => {
      // Without an answer the control channel may not reach us, and the kernel's main one may.
      if (!this.answered) this.model.send({ ask: "all", page: this.page });
    }, ASK_AGAIN);
  }

  /** The connection to the kernel, if it has a control channel; VS Code's has none. */
  #controlled() {
    const kernel = this.model.widget_manager?.kernel;
    return typeof kernel?.sendControlMessage === "function" ? kernel : null;
  }

  /** @param {Record<string, unknown>} content over the control channel, which is heard while a cell runs */
  #ask(content) {
    const asked = { ...content, page: this.page, key: this.model.get("key") };
    const kernel = this.#controlled();
    if (!kernel) return this.model.send(asked);
    const header = {
      msg_id: crypto.randomUUID?.() ?? Math.random().toString(36).slice(2),
      msg_type: "allranks_widget",
      session: kernel.clientId,
      username: kernel.username ?? "",
      date: new Date().toISOString(),
      version: "5.3",
    };
    const message = { channel: "control", header, parent_header: {}, metadata: {}, content: asked, buffers: [] };
    try {
      kernel.sendControlMessage(message, false, true);
    } catch {
      this.model.send(asked);
    }
  }

  #frame() {
    const frame = this.model.get("frame");
    if (!frame || !frame.byteLength) return;
    const [before, silent] = [this.snapshot, this.silent];
    this.snapshot = /** @type {Snapshot} */ (JSON.parse(decode(frame)));
    this.received = this.heard = performance.now();
    this.gone = false;
    this.age = 0;
    this.frames++;
    this.history.add(this.snapshot);
    this.#tell(!silent && before && sameStanding(before, this.snapshot) ? "figures" : "state");
  }

  /**
   * @param {any} content
   * @param {any[]} buffers
   */
  #message(content, buffers) {
    this.heard = performance.now();
    this.gone = false;
    if (content.do === "beat") {
      this.beats = true;
      return;
    }
    if (content.do === "output" || content.do === "logged") {
      if (this.number < 0 && content.number === 1) this.number = 0; // we were there from the start
      if (this.number < 0) return; // all of it is on its way
      if (content.number !== this.number + 1) return this.#askAll();
      this.number = content.number;
      const told = JSON.parse(decode(buffers[0]));
      if (content.do === "output") this.output.take(told);
      else this.curves.add(told);
      return this.#tell(content.do === "output" ? "output" : "figures");
    } else if (content.do === "all" && (content.page === null || content.page === this.page)) {
      this.history.seed(JSON.parse(decode(buffers[0])));
      if (this.number < 0 || content.number !== this.number) {
        this.output = new Output();
        this.output.take(JSON.parse(decode(buffers[1])));
        const { version } = this.curves;
        this.curves = new Curves();
        this.curves.version = version + 1; // what views have drawn is of an earlier one
        this.curves.add(JSON.parse(decode(buffers[2])));
      }
      this.number = content.number;
      this.answered = true;
      this.acts = content.acts;
      if (this.snapshot?.sent) {
        this.age = Math.max(0, content.now - this.snapshot.sent);
        this.received = performance.now();
      }
    } else if (content.do === "said" && (!content.page || content.page === this.page)) {
      this.said = content.text || `${content.ask}: done`;
      this.failed = content.failed;
    }
    this.#tell();
  }

  /** @param {{name: string | undefined, rank: number | null}} detail */
  #selected(detail) {
    if (detail.name !== this.snapshot?.name) return;
    this.selected = detail.rank;
    this.#tell();
  }

  /** @param {Change} change */
  #tell(change = "state") {
    for (const view of this.views) view(change);
  }
}
