// Menus: of a rank (interrupt, abort, heal), and of what can be done with a view.

import { h } from "./dom.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {{name: string, what: string, act: () => void, disabled?: boolean}} MenuItem */

const VERBS = /** @type {const} */ ([
  ["interrupt", "Interrupt", "stop its code, like Ctrl-C"],
  ["abort", "Abort collective", "unblock it from the collective it waits in"],
  ["heal", "Heal", "replace this rank with a new process (its variables are lost), re-form the world"],
]);

/**
 * @param {number} rank
 * @param {Store} store
 * @returns {MenuItem[]}
 */
export const rankItems = (rank, store) => VERBS.map(([verb, name, what]) => ({
  name, what: store.acts ? what : "not connected to a cluster", disabled: !store.acts, act: () => store.act(verb, rank),
}));

/**
 * Open a menu below its button, inside `root`.
 * @param {HTMLElement} root
 * @param {HTMLElement} opener the button
 * @param {string} label
 * @param {MenuItem[]} choices
 */
export function openMenu(root, opener, label, choices) {
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
  const items = choices.map(({ name, what, act, disabled = false }) =>
    h(
      "button.menu-item",
      {
        type: "button", role: "menuitem", tabindex: -1, disabled,
        onclick: () => { close(); act(); },
      },
      h("span.menu-name", {}, name),
      h("span.menu-what", {}, what),
    ),
  );
  const menu = h("div.menu", { role: "menu", "aria-label": label, tabindex: -1 }, ...items);
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
  (items.find((item) => !item.disabled) ?? menu).focus();
}
