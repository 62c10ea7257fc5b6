// A view as a picture that can be posted: an SVG of its own, which every program reads, and a PNG of it.
//
// The page is read as it is drawn: boxes, lines of text, drawings, and charts as images. (An SVG that holds the HTML itself,
// as foreignObject, is drawn by browsers alone.)

import { svg } from "./dom.js";

const EDGE = 16; // pixels around
const ABOVE = 52; // pixels of the title
const TITLE = { size: 16, weight: 600 };
const SHARP = 2; // pixels of the PNG for each of the page
const LEFT_OUT = ".arw-tools, .arw-toolbar, .arw-more, .arw-log > button, details:not([open]), .arw-section-head, .arw-away, .arw-pointed, .arw-tooltip, .arw-menu";
const DRAWN = /** @type {const} */ (["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "opacity",
  "font-size", "font-family", "font-weight", "paint-order"]);
const NOT_IN_XML = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff\ud800-\udfff]/gu; // half a surrogate pair among them

/** @typedef {{x: number, y: number, width: number, height: number}} Box */

/**
 * @param {HTMLElement} view
 * @param {string} title what it finds
 * @param {string} below where and when, in smaller type
 * @returns {{text: string, width: number, height: number}} the SVG, and its size in pixels
 */
export function pictureOf(view, title, below) {
  const frame = view.getBoundingClientRect();
  const [width, height] = [Math.ceil(frame.width) + 2 * EDGE, Math.ceil(frame.height) + ABOVE + EDGE];
  const style = getComputedStyle(view);
  const ground = getComputedStyle(view.closest(".arw-root") ?? view).backgroundColor;
  const picture = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "font-family": style.fontFamily });
  const named = svg("title");
  named.textContent = title;
  const line = (/** @type {string} */ text, /** @type {number} */ y, /** @type {Record<string, any>} */ more) => {
    const made = svg("text", { x: EDGE, y, fill: style.color, ...more });
    made.textContent = text;
    return made;
  };
  picture.append(
    named, svg("rect", { width, height, fill: ground }),
    line(cut(title, `${TITLE.weight} ${TITLE.size}px ${style.fontFamily}`, width - 2 * EDGE), 25, { "font-size": TITLE.size, "font-weight": TITLE.weight }),
    line(below, 42, { "font-size": 11, "fill-opacity": 0.75 }),
  );
  const content = svg("g");
  picture.append(content);
  copy(view, content, { x: EDGE - frame.left, y: ABOVE - frame.top });
  return { text: new XMLSerializer().serializeToString(picture).replace(NOT_IN_XML, ""), width, height };
}

/**
 * @param {{text: string, width: number, height: number}} picture
 * @returns {Promise<Blob>} the PNG
 */
export async function drawPng({ text, width, height }) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [SHARP * width, SHARP * height];
  /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")).drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, failed) => canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("the picture is too large"))), "image/png"));
}

/**
 * Save what the reader chose as a file.
 * @param {"svg" | "png"} kind
 * @param {HTMLElement} view
 * @param {string} name of the file, without its ending
 * @param {string} title
 * @param {string} below
 */
export async function savePicture(kind, view, name, title, below) {
  const picture = pictureOf(view, title, below);
  const blob = kind === "svg" ? new Blob([picture.text], { type: "image/svg+xml" }) : await drawPng(picture);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${name}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // Safari reads it after the click
}

/** @param {Element} node @param {SVGElement} into @param {{x: number, y: number}} shift from the page to the picture */
function copy(node, into, shift) {
  if (node.matches(LEFT_OUT)) return;
  const style = getComputedStyle(node);
  if (style.display === "none" || style.visibility === "hidden" || style.opacity === "0") return;
  const { left, top, width, height } = node.getBoundingClientRect();
  const box = { x: round(left + shift.x), y: round(top + shift.y), width: round(width), height: round(height) };
  if (node instanceof SVGSVGElement) return into.append(drawing(node, box));
  if (node instanceof HTMLImageElement) {
    if (node.src.startsWith("data:")) into.append(svg("image", { ...box, href: node.src }));
    return;
  }
  if (node instanceof HTMLCanvasElement) {
    if (width && height) into.append(svg("image", { ...box, href: node.toDataURL("image/png") }));
    return;
  }
  if (style.clipPath !== "none") return; // for screen readers only
  into.append(...boxes(style, box));
  let inner = into;
  if (style.overflow !== "visible" && (node.scrollWidth > node.clientWidth + 1 || node.scrollHeight > node.clientHeight + 1)) {
    inner = svg("svg", { ...box, viewBox: `${box.x} ${box.y} ${box.width} ${box.height}` }); // which clips
    into.append(inner);
  }
  for (const child of node.childNodes) {
    if (child instanceof Element) copy(child, inner, shift);
    else if (child instanceof Text) inner.append(...lines(child, style, shift));
  }
  const after = getComputedStyle(node, "::after");
  if (/^".+"$/.test(after.content) && after.position === "static") inner.append(...trailing(node, after, style, shift));
}

/** @param {number} value */
const round = (value) => Math.round(value * 10) / 10;

/** @param {string} colour as computed */
const seen = (colour) => !/^(transparent|rgba\(.*, 0\))$/.test(colour);

/**
 * The ground of a box and its edges.
 * @param {CSSStyleDeclaration} style
 * @param {Box} box
 * @returns {SVGElement[]}
 */
function boxes(style, { x, y, width, height }) {
  if (!width || !height) return [];
  const edges = /** @type {const} */ (["Top", "Right", "Bottom", "Left"]).map((side) => ({
    colour: style[`border${side}Color`], line: style[`border${side}Style`] === "none" ? 0 : parseFloat(style[`border${side}Width`]),
  }));
  const shown = edges.map(({ colour, line }) => (seen(colour) ? line : 0));
  const even = shown.every((line) => line === shown[0]);
  const [line] = even ? shown : [0];
  const shape = { x: x + line / 2, y: y + line / 2, width: Math.max(0, width - line), height: Math.max(0, height - line), rx: parseFloat(style.borderTopLeftRadius) || 0 };
  const grounds = [style.backgroundColor, ...(style.backgroundImage.match(/rgba?\([^)]*\)/g) ?? []).slice(0, 1)].filter(seen);
  const made = grounds.map((fill) => svg("rect", { ...shape, fill }));
  if (line) made.push(svg("rect", { ...shape, fill: "none", stroke: edges[0].colour, "stroke-width": line }));
  if (even) return made;
  const ends = [[x, y, x + width, y], [x + width, y, x + width, y + height], [x, y + height, x + width, y + height], [x, y, x, y + height]];
  edges.forEach(({ colour }, i) => {
    const [x1, y1, x2, y2] = ends[i];
    const dash = style[/** @type {const} */ (["borderTopStyle", "borderRightStyle", "borderBottomStyle", "borderLeftStyle"])[i]] === "dashed" ? { "stroke-dasharray": "4 3" } : {};
    if (shown[i]) made.push(svg("line", { x1, y1, x2, y2, stroke: colour, "stroke-width": shown[i], ...dash }));
  });
  return made;
}

/**
 * The lines that a piece of text is broken into.
 * @param {Text} node
 * @param {CSSStyleDeclaration} style of its element
 * @param {{x: number, y: number}} shift
 * @returns {SVGElement[]}
 */
function lines(node, style, shift) {
  const text = node.data;
  /** @type {{from: number, to: number, top: number}[]} */
  const runs = [];
  const range = document.createRange();
  for (const { index, 0: word } of text.matchAll(/\S+/g)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const { top, width } = range.getBoundingClientRect();
    if (!width) continue;
    const last = runs[runs.length - 1];
    if (last && Math.abs(last.top - top) < 3) last.to = index + word.length;
    else runs.push({ from: index, to: index + word.length, top });
  }
  return runs.map(({ from, to }) => {
    range.setStart(node, from);
    range.setEnd(node, to);
    const { left, top, width, height } = range.getBoundingClientRect();
    const words = text.slice(from, to);
    return written(style.whiteSpace.startsWith("pre") ? words : words.replace(/\s+/g, " "), style, left + shift.x, baseline(style, top, height) + shift.y, width);
  });
}

/**
 * What the style sheet writes after a node's text.
 * @param {Element} node
 * @param {CSSStyleDeclaration} after
 * @param {CSSStyleDeclaration} style
 * @param {{x: number, y: number}} shift
 */
function trailing(node, after, style, shift) {
  const range = document.createRange();
  range.selectNodeContents(node);
  const { right, top, height } = range.getBoundingClientRect();
  return height ? [written(JSON.parse(after.content), style, right + shift.x, baseline(style, top, height) + shift.y)] : [];
}

/**
 * @param {string} text
 * @param {CSSStyleDeclaration} style
 * @param {number} x
 * @param {number} y of its baseline
 * @param {number} [width] that it takes here, and is to take where there are other fonts
 */
function written(text, style, x, y, width) {
  const fit = width ? { textLength: round(width), lengthAdjust: "spacingAndGlyphs" } : {};
  const made = svg("text", { x: round(x), y: round(y), fill: style.color, "font-size": style.fontSize, "font-weight": style.fontWeight, "font-family": style.fontFamily, "xml:space": "preserve", ...fit });
  made.textContent = text;
  return made;
}

/** @type {CanvasRenderingContext2D | null} */
let ruler = null;

/** @param {string} text @param {string} font as in CSS @returns {TextMetrics | undefined} */
function measured(text, font) {
  ruler ??= document.createElement("canvas").getContext("2d");
  if (ruler) ruler.font = font;
  return ruler?.measureText(text);
}

/** @param {string} text @param {string} font @param {number} room pixels @returns {string} as much of it as there is room for */
function cut(text, font, room) {
  const fits = (/** @type {string} */ some) => (measured(some, font)?.width ?? 0) <= room;
  if (fits(text)) return text;
  let [length, tooLong] = [0, text.length];
  while (tooLong - length > 1) {
    const middle = (length + tooLong) >> 1;
    if (fits(`${text.slice(0, middle)}…`)) length = middle;
    else tooLong = middle;
  }
  return `${text.slice(0, length).trimEnd()}…`;
}

/** @param {CSSStyleDeclaration} style @param {number} top @param {number} height @returns {number} where a line of text stands */
function baseline(style, top, height) {
  const metrics = measured("x", `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`);
  if (!metrics) return top + 0.8 * height;
  const { fontBoundingBoxAscent: up, fontBoundingBoxDescent: down } = metrics;
  return top + (height - up - down) / 2 + up;
}

/** @param {SVGSVGElement} node @param {Box} box */
function drawing(node, box) {
  const made = /** @type {SVGSVGElement} */ (node.cloneNode(true));
  const [originals, copies] = [[node, ...node.querySelectorAll("*")], [made, ...made.querySelectorAll("*")]];
  originals.forEach((original, i) => {
    const style = getComputedStyle(original);
    const one = copies[i];
    if (style.display === "none" || original.matches(LEFT_OUT)) return one.remove();
    for (const name of DRAWN) one.setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "style", "aria-hidden", "role", "aria-label"]) one.removeAttribute(name);
    for (const name of Object.keys(/** @type {SVGElement} */ (one).dataset)) delete (/** @type {SVGElement} */ (one).dataset[name]);
  });
  for (const [name, value] of Object.entries({ ...box, overflow: "visible" })) made.setAttribute(name, String(value));
  return made;
}
