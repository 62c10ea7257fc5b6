// The menu of a rank: interrupt, abort, heal.

import { h } from "./dom.js";

/** @typedef {import("./store.js").Store} Store */

const VERBS = /** @type {const} */ ([
  ["interrupt", "Interrupt", "stop its code, like Ctrl-C"],
  ["abort", "Abort collective", "unblock it from the collective it waits in"],
  ["heal", "Heal", "replace dead ranks with new processes, re-form the world"],
]);

/**
 * Open the menu of a rank below its button, inside `root`.
 * @param {HTMLElement} root
 * @param {HTMLElement} opener the button
 * @param {number} rank
 * @param {Store} store
 */
export function openMenu(root, opener, rank, store) {
  root.querySelector(".arw-menu")?.remove();
  const close = (back = true) => {
    menu.remove();
    document.removeEventListener("pointerdown", outside, true);
    opener.setAttribute("aria-expanded", "false");
    if (back) opener.focus();
  };
  const outside = (/** @type {Event} */ event) => {
    if (!menu.contains(/** @type {Node} */ (event.target))) close(false);
  };
  const items = VERBS.map(([verb, name, what]) =>
    h(
      "button.menu-item",
      {
        type: "button", role: "menuitem", tabindex: -1, disabled: !store.acts,
        onclick: () => { close(); store.act(verb, rank); },
      },
      h("span.menu-name", {}, name),
      h("span.menu-what", {}, store.acts ? what : "not connected to a cluster"),
    ),
  );
  const menu = h("div.menu", { role: "menu", "aria-label": `rank ${rank}`, tabindex: -1 }, ...items);
  menu.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const at = items.indexOf(/** @type {any} */ (document.activeElement));
    const to = { ArrowDown: at + 1, ArrowUp: at - 1 + items.length, Home: 0, End: items.length - 1 }[event.key];
    if (to !== undefined) items[to % items.length].focus();
    else if (event.key === "Escape" || event.key === "Tab") close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  root.append(menu);
  const [at, frame] = [opener.getBoundingClientRect(), root.getBoundingClientRect()];
  const left = Math.min(at.left - frame.left, frame.width - menu.offsetWidth - 8);
  menu.style.left = `${Math.max(4, left)}px`;
  menu.style.top = `${at.bottom - frame.top + 4}px`;
  opener.setAttribute("aria-expanded", "true");
  document.addEventListener("pointerdown", outside, true);
  (store.acts ? items[0] : menu).focus();
}
