// What a link carries, beside it: for links whose rates have no room in the picture.

import { h } from "./dom.js";

const EDGE = 16; // pixels left free at the sides

export class Tooltip {
  /** @param {HTMLElement} root in which it lies */
  constructor(root) {
    this.root = root;
    this.node = h("div.tooltip", { role: "tooltip", hidden: true });
    /** @type {(() => string[]) | null} what is shown */
    this.lines = null;
    root.addEventListener("keydown", (event) => event.key === "Escape" && this.hide());
  }

  /**
   * @param {Element} by near which it is shown
   * @param {() => string[]} lines what it says, as it is now
   * @param {{x: number, y: number}} [at] of the pointer
   */
  show(by, lines, at) {
    this.lines = lines;
    this.update();
    if (this.node.hidden) return;
    this.root.append(this.node);
    const [box, frame] = [by.getBoundingClientRect(), this.root.getBoundingClientRect()];
    const [x, y] = at ? [at.x - frame.left + 12, at.y - frame.top + 14] : [box.left - frame.left, box.bottom - frame.top + 6];
    this.node.style.left = `${EDGE}px`; // where it is as wide as it wants to be
    const wide = Math.ceil(this.node.getBoundingClientRect().width);
    this.node.style.left = `${Math.max(EDGE, Math.min(x, frame.width - wide - EDGE))}px`;
    this.node.style.top = `${y}px`;
  }

  hide() {
    this.lines = null;
    this.node.hidden = true;
  }

  update() {
    if (!this.lines) return;
    const text = this.lines().join("\n");
    this.node.hidden = !text;
    if (this.node.textContent !== text) this.node.textContent = text;
  }
}
