// A view in the dashboard: its name, its finding in words, and the picture, which folds away.

import { h, hide, icon, mark, say } from "./dom.js";

/** @typedef {import("./headlines.js").Headline} Headline */

const KEY = "allranks-section-"; // in the page's session storage, with the name

export class Section {
  /**
   * @param {string} name
   * @param {{folds: boolean, closed?: boolean, tools?: Node[], opened: () => void}} how whether it can be folded, and is
   *   closed at first; `tools` stand in its head while it is open; `opened` is called when it has been opened
   * @param {...Node} nodes
   */
  constructor(name, { folds, closed = false, tools = [], opened }, ...nodes) {
    this.name = name;
    this.open = folds ? kept(name) ?? !closed : true;
    this.sign = h("span.sign", {}, icon("warning"));
    this.words = h("span");
    this.finding = h("span.headline", {}, this.sign, this.words);
    this.tools = h("div.tools", {}, ...tools);
    this.body = h("div.section-body", {}, ...nodes);
    this.fold = folds && h("button.fold", { type: "button", onclick: () => {
      this.#set(!this.open);
      keep(name, this.open);
      if (this.open) opened();
    } }, icon("fold"), name);
    const title = h("div.title", { role: "heading", "aria-level": 3 }, this.fold || name);
    this.node = h("section.section", { "aria-label": name, "data-view": name.toLowerCase() }, h("div.section-head", {}, title, this.finding, this.tools), this.body);
    this.say({ text: "" });
    this.#set(this.open);
  }

  /** Unfold it, for what is to be seen there now. */
  show() {
    if (!this.open) this.#set(true);
  }

  /** @param {boolean} open */
  #set(open) {
    this.open = open;
    mark(this.node, "data-open", String(open));
    if (this.fold) mark(this.fold, "aria-expanded", String(open));
    hide(this.body, !open);
    hide(this.tools, !open);
  }

  /** @param {Headline} finding */
  say({ text, wrong = false, whole = "" }) {
    hide(this.finding, !text);
    hide(this.sign, !wrong);
    mark(this.finding, "data-wrong", String(wrong));
    mark(this.finding, "title", whole);
    say(this.words, text);
  }
}

/** @param {string} name @returns {boolean | null} whether the section was left open on this page; null if nobody folded it */
function kept(name) {
  try {
    const value = sessionStorage.getItem(KEY + name);
    return value === null ? null : value === "open";
  } catch {
    return null; // a page without an origin of its own has no storage
  }
}

/** @param {string} name @param {boolean} open */
function keep(name, open) {
  try {
    sessionStorage.setItem(KEY + name, open ? "open" : "closed");
  } catch {
    // as above: then it is closed again after a reload
  }
}
