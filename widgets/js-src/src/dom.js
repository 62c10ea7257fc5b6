// Small tools for the page.

export const LEAST_WIDTH = 246; // pixels of a picture: in style.css the root has at least 280, with its edges
const RESIZED = 100; // ms between two drawings of a picture whose width, theme or series are others
const WITH_NEXT = 550; // ms that a picture that is due waits for the frame of the next snapshot: figures come twice a second

/** @type {WeakMap<Node, string>} */
const saidOf = new WeakMap();

/**
 * An HTML element. Properties whose name begins with `on` are listeners, others attributes; null leaves one out.
 * @param {string} tag with classes after dots
 * @param {Record<string, any>} [props]
 * @param {...(Node | string | null)} children
 * @returns {any}
 */
export function h(tag, props = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name);
  if (classes.length) node.className = classes.map((one) => `arw-${one}`).join(" ");
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/**
 * An SVG element.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...Node} children
 * @returns {any}
 */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  node.append(...children);
  return node;
}

/**
 * Set the text of a node, if it is another: most frames change few of them.
 * @param {Node} node
 * @param {string} text
 */
export function say(node, text) {
  if (saidOf.get(node) === text) return;
  saidOf.set(node, text);
  const [only] = node.childNodes;
  // A new text node costs the page several times what new characters of the one that is there do.
  if (only?.nodeType === Node.TEXT_NODE && node.childNodes.length === 1) /** @type {Text} */ (only).data = text;
  else node.textContent = text;
}

/**
 * @param {any} node
 * @param {boolean} hidden
 */
export function hide(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden; // to set it again would have the node styled again
}

/** @type {WeakMap<Element, number>} */
const widths = new WeakMap();

/**
 * The width of a node in pixels, as it was when it was last laid out. To ask the node would lay out the page at once.
 * @param {Element} node
 * @param {() => void} changed called when it has become another
 */
export function widthOf(node, changed) {
  const known = widths.get(node);
  if (known !== undefined) return known;
  widths.set(node, node.clientWidth);
  new ResizeObserver(() => {
    if (widths.get(node) === node.clientWidth) return;
    widths.set(node, node.clientWidth);
    changed();
  }).observe(node);
  return node.clientWidth;
}

/**
 * @param {Element} node
 * @param {string} name
 * @param {string | number} value
 */
export function mark(node, name, value) {
  const text = String(value);
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

/**
 * A piece of a line of a chart, for its legend.
 * @param {string} colour
 * @param {number[] | undefined} dash of the line in the chart, if it is dashed
 */
export function swatch(colour, dash) {
  return svg("svg", { class: "arw-swatch", height: 2, "aria-hidden": "true" }, svg("line", { x2: 16, y1: 1, y2: 1, stroke: colour, "stroke-width": 2, "stroke-dasharray": dash?.length ? "4 2" : "none" })); // ends with a dash, 10 pixels wide or 16
}

/**
 * A row of buttons of which one is pressed.
 * @param {string} label
 * @param {[string, string][]} choices value and name
 * @param {(value: string) => void} chosen
 * @returns {{node: HTMLElement, set: (value: string) => void}}
 */
export function choice(label, choices, chosen) {
  const buttons = choices.map(([value, name]) =>
    h("button.choice", { type: "button", "data-value": value, onclick: () => chosen(value) }, name),
  );
  return {
    node: h("div.choices", { role: "group", "aria-label": label }, ...buttons),
    set: (/** @type {string} */ value) => {
      for (const button of buttons) mark(button, "aria-pressed", String(button.dataset.value === value));
    },
  };
}

const PATHS = {
  starting: "M6 1.5a4.5 4.5 0 1 1-4.5 4.5",
  idle: "M6 2a4 4 0 1 1 0 8a4 4 0 1 1 0-8z",
  running: "M3.5 1.8L10.2 6L3.5 10.2z",
  exchanging: "M2 4.2h7M7 2l2.2 2.2L7 6.4M10 8.8H3M5 6.6L2.8 8.8L5 11",
  waiting: "M4 2v8M8 2v8",
  debugging: "M3.2 1.8v8.4M6.2 2.6L10.4 6L6.2 9.4z",
  failed: "M2.5 2.5l7 7M9.5 2.5l-7 7",
  unblocked: "M2.5 6h7",
  suspended: "M2.5 2.5h7v7h-7z",
  silent: "M2.5 2.5h7v7h-7z",
  dead: "M6 1.2L11 10.4H1zM6 4.6v2.6M6 8.7v.4",
  warning: "M6 1.2L11 10.4H1zM6 4.6v2.6M6 8.7v.4",
  mac: "M1.5 2h9v6h-9zM4.3 10.3h3.4M6 8v2.3",
  gpus: "M1.2 3h9.6v5.4H1.2zM3 8.4v2M5 8.4v2M7 8.4v2M6 4.2a1.5 1.5 0 1 1 0 3a1.5 1.5 0 1 1 0-3z",
  machine: "M2 1.6h8v3.6H2zM2 6.8h8v3.6H2zM4 3.4h.01M4 8.6h.01",
  save: "M6 1.5v6M3.4 5L6 7.6L8.6 5M2 10.4h8",
  fold: "M3 4.5L6 7.5L9 4.5",
  window: "M4.5 2.5h-3v8h8v-3M6.5 1.5h4v4M10.5 1.5L5.5 6.5",
  more: "M2.2 6h.01M6 6h.01M9.8 6h.01",
};

/** @param {string} name a drawing that goes with a word */
export function icon(name) {
  const path = svg("path", { d: PATHS[/** @type {keyof typeof PATHS} */ (name)] ?? PATHS.idle });
  return svg("svg", { class: `arw-icon arw-icon-${name}`, viewBox: "0 0 12 12", "aria-hidden": "true" }, path);
}

/**
 * Draw another icon in place of one.
 * @param {Element} node
 * @param {string} name
 */
export function setIcon(node, name) {
  const classes = `arw-icon arw-icon-${name}`;
  if (node.getAttribute("class") === classes) return;
  node.setAttribute("class", classes);
  node.firstElementChild?.setAttribute("d", PATHS[/** @type {keyof typeof PATHS} */ (name)] ?? PATHS.idle);
}

/** When a picture is drawn again: in the frame of a snapshot, not sooner than `every` ms after it was drawn last. */
export class DrawingTimer {
  #drawnAt = -Infinity;
  #later = 0;

  /** @param {number} every */
  constructor(every) {
    this.every = every;
  }

  /**
   * Whether to draw now. If not, `again` is called when it is time, unless this is asked before.
   * @param {() => void} again
   * @param {{force?: boolean, resized?: boolean}} [how] `resized` where its width, theme or series are others
   * @returns {boolean}
   */
  isDue(again, { force = false, resized = false } = {}) {
    clearTimeout(this.#later);
    const now = performance.now();
    const left = (resized ? RESIZED : this.every) - (now - this.#drawnAt);
    if (left > 0 && !force) {
      this.#later = window.setTimeout(again, left + (resized ? 0 : WITH_NEXT));
      return false;
    }
    this.#drawnAt = now;
    return true;
  }
}
