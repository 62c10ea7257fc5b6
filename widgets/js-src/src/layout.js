// Where hosts and ranks stand. Pure geometry in pixels, no page.
//
// Ranks stand in rows that run to the right and back again, so that the links of a ring join neighbours: with two rows
// it is closed without crossing anything.

/** @typedef {{x: number, y: number, w: number, h: number}} Box */
/** @typedef {Box & {headAtBottom: boolean}} HostBox */
/** @typedef {{width: number, height: number, size: "large" | "medium" | "small", head: number, tall: boolean, hosts: HostBox[],
 *   ranks: Map<number, Box>}} Layout */

const PAD = 14;
const HEAD = 58;
const TALL_HEAD = 78; // memory and load below each other
const NETWORK = 17; // one more line: what the interface towards the other hosts carries
const WIDE = 340; // pixels in which they stand beside each other
const CARDS = /** @type {const} */ ({ large: [136, 60], medium: [84, 50], small: [64, 38] });
const BETWEEN = { large: 190, medium: 150, small: 44 };
const INSIDE = { large: 96, medium: 34, small: 18 };

/**
 * @param {number[][]} hosts the ranks on each host
 * @param {"ring" | "mesh" | "none"} shape
 * @param {number} width there is, in pixels
 * @returns {Layout}
 */
export function layout(hosts, shape, width) {
  const total = hosts.reduce((n, ranks) => n + ranks.length, 0);
  const size = total <= 8 ? "large" : total <= 16 ? "medium" : "small";
  return hosts.length === 1 ? oneHost(hosts[0], shape, width, size) : manyHosts(hosts, width, size);
}

/**
 * @param {number} value
 * @param {number} low
 * @param {number} high
 */
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

/**
 * @param {number[]} ranks
 * @param {string} shape
 * @param {number} width
 * @param {Layout["size"]} size
 * @returns {Layout}
 */
function oneHost(ranks, shape, width, size) {
  const [w, h] = CARDS[size];
  const n = ranks.length;
  const inner = width - 2 * PAD - 24;
  /** @type {Map<number, Box>} */
  const boxes = new Map();
  let bottom = HEAD;
  if (shape === "mesh" && n > 4 && n <= 16 && inner >= 600) {
    const [rx, ry] = [Math.min((inner - w) / 2, 300), 60 + n * 9];
    ranks.forEach((rank, i) => {
      const turn = (2 * Math.PI * i) / n - Math.PI / 2;
      const [x, y] = [width / 2 + rx * Math.cos(turn) - w / 2, HEAD + ry + ry * Math.sin(turn)];
      boxes.set(rank, { x: Math.round(x), y: Math.round(y), w, h });
    });
    bottom = HEAD + 2 * ry + h;
  } else {
    const fit = Math.max(1, Math.floor((inner + 24) / (w + 24)));
    const wanted = n <= 2 ? n : n <= 8 ? Math.ceil(n / 2) : n <= 16 ? Math.ceil(n / 2) : evenRows(n, fit);
    const columns = clamp(wanted, 1, fit);
    const gap = columns > 1 ? clamp((inner - columns * w) / (columns - 1), 14, size === "large" ? 230 : 60) : 0;
    const rowGap = { large: 74, medium: 52, small: 22 }[size];
    const left = (width - columns * w - (columns - 1) * gap) / 2;
    ranks.forEach((rank, i) => {
      const row = Math.floor(i / columns);
      const inRow = Math.min(columns, n - row * columns);
      const along = i % columns;
      const at = row % 2 ? columns - 1 - along : along;
      const shift = row % 2 && row === 1 && inRow < columns && n <= 8 ? -((columns - inRow) * (w + gap)) / 2 : 0;
      const box = { x: Math.round(left + at * (w + gap) + shift), y: HEAD + row * (h + rowGap), w, h };
      boxes.set(rank, box);
      bottom = Math.max(bottom, box.y + h);
    });
  }
  const host = { x: 0, y: 0, w: width, h: bottom + PAD, headAtBottom: false };
  return { width, height: host.h, size, head: HEAD, tall: false, hosts: [host], ranks: boxes };
}

/**
 * Columns with which the ranks fill an even number of rows, so that the last rank stands below the first.
 * @param {number} n
 * @param {number} fit
 */
function evenRows(n, fit) {
  for (let columns = Math.min(fit, 16); columns >= 4; columns--)
    if (n % columns === 0 && (n / columns) % 2 === 0) return columns;
  return Math.min(fit, 12);
}

/**
 * @param {number[][]} hosts
 * @param {number} width
 * @param {Layout["size"]} size
 * @returns {Layout}
 */
function manyHosts(hosts, width, size) {
  const [w, h] = CARDS[size];
  const most = Math.max(1, ...hosts.map((ranks) => ranks.length));
  const across = Math.min(most, 4);
  const rows = Math.ceil(most / across);
  const count = hosts.length;
  const side = 14;
  const narrow = across * w + (across - 1) * 10 + 2 * PAD;
  let columns = count <= 3 ? count : count <= 8 ? Math.ceil(count / 2) : Math.ceil(Math.sqrt(count * 1.5));
  const least = Math.max(narrow, 190);
  while (columns > 1 && columns * least + (columns - 1) * 36 > width - 2 * side) columns--;
  const room = (width - 2 * side - (columns - 1) * BETWEEN[size]) / columns;
  const boxW = clamp(room, least, Math.max(270, across * w + (across - 1) * INSIDE[size] + 2 * PAD));
  const inside = across > 1 ? (boxW - 2 * PAD - across * w) / (across - 1) : 0;
  const gap = columns > 1 ? clamp((width - 2 * side - columns * boxW) / (columns - 1), 36, 260) : 0;
  const tall = boxW < WIDE;
  const head = (tall ? TALL_HEAD : HEAD) + NETWORK;
  const boxH = head + rows * h + (rows - 1) * 20 + PAD;
  const rowGap = size === "small" ? 40 : 76;
  const left = Math.max(side, (width - columns * boxW - (columns - 1) * gap) / 2);
  /** @type {Map<number, Box>} */
  const boxes = new Map();
  const placed = hosts.map((ranks, i) => {
    const row = Math.floor(i / columns);
    const back = row % 2 === 1;
    const column = back ? columns - 1 - (i % columns) : i % columns;
    const box = { x: Math.round(left + column * (boxW + gap)), y: row * (boxH + rowGap), w: boxW, h: boxH };
    const top = box.y + (back ? PAD : head);
    const width = Math.min(across, ranks.length) * w + (Math.min(across, ranks.length) - 1) * inside;
    ranks.forEach((rank, k) => {
      // In several rows the ranks go down and up again, and so end beside the host that comes next.
      const down = Math.floor(k / rows) % 2 === 0;
      const line = down ? k % rows : rows - 1 - (k % rows);
      const along = Math.floor(k / rows);
      const at = back ? Math.min(across, ranks.length) - 1 - along : along;
      const x = box.x + (boxW - width) / 2 + at * (w + inside);
      boxes.set(rank, { x: Math.round(x), y: top + line * (h + 20), w, h });
    });
    return { ...box, headAtBottom: back };
  });
  const height = Math.max(...placed.map((box) => box.y + box.h));
  return { width, height, size, head, tall, hosts: placed, ranks: boxes };
}

/**
 * The line of a link from one box to another, beside that of the opposite direction.
 * @param {Box} from
 * @param {Box} to
 * @param {boolean} [grid] whether others may stand between the two, so that the way goes around them
 * @param {number} [nth] of several links of the same two, each further out
 * @returns {{points: [number, number][], middle: [number, number], upright: boolean, length: number}}
 */
export function route(from, to, grid = true, nth = 0) {
  const [ax, ay] = [from.x + from.w / 2, from.y + from.h / 2];
  const [bx, by] = [to.x + to.w / 2, to.y + to.h / 2];
  const around = grid && Math.abs(ax - bx) < 2 && Math.abs(ay - by) > 3 * from.h + 60;
  if (around) {
    const down = by > ay;
    const x = from.x - 10 - (down ? 0 : 5) - (Math.abs(by - ay) > 5 * from.h + 60 ? 6 : 0) - 10 * nth;
    const shift = (down ? 4 : -4) * (1 + nth);
    /** @type {[number, number][]} */
    const points = [[from.x, ay + shift], [x, ay + shift], [x, by + shift], [to.x, by + shift]];
    return { points, middle: [x, (ay + by) / 2], upright: true, length: Math.abs(by - ay) };
  }
  const [dx, dy] = [bx - ax, by - ay];
  const distance = Math.hypot(dx, dy) || 1;
  const [ux, uy] = [dx / distance, dy / distance];
  const shift = 5 + 5 * nth; // to the right of the way it goes
  const [sx, sy] = [-uy * shift, ux * shift];
  const start = edge(from, ux, uy);
  const end = edge(to, -ux, -uy);
  /** @type {[number, number][]} */
  const points = [[start[0] + sx + ux * 2, start[1] + sy + uy * 2], [end[0] + sx - ux * 3, end[1] + sy - uy * 3]];
  const length = Math.hypot(points[1][0] - points[0][0], points[1][1] - points[0][1]);
  const middle = /** @type {[number, number]} */ ([(points[0][0] + points[1][0]) / 2, (points[0][1] + points[1][1]) / 2]);
  return { points, middle, upright: Math.abs(dy) > Math.abs(dx), length };
}

/**
 * Where the way from the middle of a box leaves it.
 * @param {Box} box
 * @param {number} ux
 * @param {number} uy
 * @returns {[number, number]}
 */
function edge(box, ux, uy) {
  const t = Math.min(box.w / 2 / Math.max(Math.abs(ux), 1e-9), box.h / 2 / Math.max(Math.abs(uy), 1e-9));
  return [box.x + box.w / 2 + ux * t, box.y + box.h / 2 + uy * t];
}
