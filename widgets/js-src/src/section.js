// A view in the dashboard: its name, its finding in words, and the picture, which folds away.

import { h, hide, icon, mark, say } from "./dom.js";
import { openMenu } from "./menu.js";
import { savePicture } from "./save_picture.js";

/** @typedef {import("./headlines.js").Headline} Headline */

const KEY = "allranks-section-"; // in the page's session storage, with the views and the name

export class Section {
  /**
   * @param {string} name
   * @param {{views: string[], closed?: boolean, tools?: Node[], opened: () => void, root: HTMLElement,
   *   caption: (headline: string) => [string, string]}} how `views` are all of the dashboard: a section folds if
   *   there are several, and is remembered for these; whether it is closed at first; `tools` stand
   *   in its head while it is open; `opened` is called when it has been opened; `caption` is what stands above a picture of
   *   it: what it finds, and where and when
   * @param {...Node} nodes
   */
  constructor(name, { views, closed = false, tools = [], opened, root, caption }, ...nodes) {
    this.name = name;
    const folds = views.length > 1;
    this.open = folds ? kept(views, name) ?? !closed : true;
    this.sign = h("span.sign", {}, icon("warning"));
    this.words = h("span");
    this.finding = h("span.headline", {}, this.sign, this.words);
    const save = h("button.save", { type: "button", "aria-haspopup": "menu", "aria-expanded": "false", "aria-label": `Save picture of ${name}`, title: "Save picture" }, icon("save"));
    const saved = (/** @type {"svg" | "png"} */ kind) =>
      savePicture(kind, this.body, `allranks-${name.toLowerCase()}`, ...caption(this.finding.hidden ? "" : this.words.textContent))
        .catch((error) => this.say({ text: `could not save the picture: ${error.message}`, wrong: true }));
    save.addEventListener("click", () => openMenu(root, save, `Save picture of ${name}`, [
      { name: "Save as SVG", what: "for documents; charts are images in it", act: () => saved("svg") },
      { name: "Save as PNG", what: "for chats and slides", act: () => saved("png") },
    ]));
    this.tools = h("div.tools", {}, ...tools, save);
    this.body = h("div.section-body", {}, ...nodes);
    this.fold = folds && h("button.fold", { type: "button", onclick: () => {
      this.#set(!this.open);
      keep(views, name, this.open);
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
  say({ text, wrong = false, bad = false, whole = "" }) {
    hide(this.finding, !text);
    hide(this.sign, !wrong);
    mark(this.finding, "data-wrong", String(wrong));
    mark(this.finding, "data-bad", String(bad));
    mark(this.finding, "title", whole);
    say(this.words, text);
  }
}

/** @param {string[]} views @param {string} name */
const keyOf = (views, name) => `${KEY}${views.join(" ")} ${name}`;

/**
 * @param {string[]} views all of the dashboard: what is folded among four views may be what another one was opened for
 * @param {string} name
 * @returns {boolean | null} whether the section was left open on this page; null if it was never folded
 */
export function kept(views, name) {
  try {
    const value = sessionStorage.getItem(keyOf(views, name));
    return value === null ? null : value === "open";
  } catch {
    return null; // a page without an origin of its own has no storage
  }
}

/** @param {string[]} views @param {string} name @param {boolean} open */
export function keep(views, name, open) {
  try {
    sessionStorage.setItem(keyOf(views, name), open ? "open" : "closed");
  } catch {
    // as above: then it is closed again after a reload
  }
}
