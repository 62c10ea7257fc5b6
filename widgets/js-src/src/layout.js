// Where hosts and ranks stand. Pure geometry in pixels, no page.
//
// The ranks of a ring stand in rows that run to the right and back again, so that its links join neighbours. Those of a
// mesh stand in two rows: all their links run in the band between, where nothing else is.

/** @typedef {{x: number, y: number, w: number, h: number}} Box */
/** @typedef {Box & {headAtBottom: boolean}} HostBox */
/** @typedef {"large" | "medium" | "small" | "tiny"} Size */
/** @typedef {"ring" | "mesh" | "none"} Shape */
/** @typedef {{wires?: number, network?: boolean, low?: boolean, sizes?: Size[]}} More how many links join the same two
 *   ranks, at the most; whether heads of hosts have a line for their interface; whether height is scarce, so that heads
 *   are of one line; the sizes of cards to choose from, the largest first */
/** @typedef {{width: number, height: number, size: Size, head: number, shape: Shape, hosts: HostBox[],
 *   ranks: Map<number, Box>, bottom: number, gaps: [number, number][], left?: boolean}} Layout `shape` of the links that
 *   can be drawn; `bottom` of the last row; `gaps` between the rows, from the top; `left` says that links are left out */

const PAD = 12;
const PLAIN_HEAD = 26; // where height is scarce: the name and the load in one line
const HEADS = { wide: 58, narrow: 78, slim: 74 };
const NETWORK = 17; // one more line: what the interface towards the other hosts carries
const NARROW = 372; // pixels below which memory and load stand below each other
const SLIM = 264; // below which they have no meters
const LEAST_HOST = 158;
const LEAST_PLAIN_HOST = 122;
const LEAST_BETWEEN = 36; // pixels between hosts
const LEAST_LABELLED = 96; // the same where the rates of a link stand between them
const MOST_IN_BAND = 16; // ranks of a mesh
const TIGHT = { pad: 7, gap: 4, between: 12, rowGap: 8 }; // of tiny cards, where height is scarce
const BELOW = 58; // pixels below a single row, for the link from the last rank to the first
const LOOP = 36; // the same where links have no labels
const CARDS = /** @type {const} */ ({ large: [148, 60], medium: [88, 50], small: [78, 38], tiny: [44, 26] });
const LEAST_GAP = { large: 84, medium: 24, small: 16, tiny: 6 };
const ROW_GAP = { large: 76, medium: 56, small: 22, tiny: 18 };
const BETWEEN = { large: 190, medium: 150, small: 44, tiny: LEAST_BETWEEN };
const ROWS_APART = { large: 76, medium: 76, small: 40, tiny: 28 }; // rows of hosts whose links are drawn
const INSIDE = { large: 96, medium: 34, small: 18, tiny: 8 };

/**
 * @param {number[][]} hosts the ranks on each host
 * @param {Shape} shape
 * @param {number} width there is, in pixels
 * @param {More} [more]
 * @returns {Layout}
 */
export function layout(hosts, shape, width, more = {}) {
  const total = hosts.reduce((n, ranks) => n + ranks.length, 0);
  const inOrder = hosts.flat().every((rank, i) => rank === i);
  const tangled = shape === "ring" && !inOrder; // its links do not join neighbours: they are drawn as those of a mesh
  if (tangled) shape = "mesh";
  const sizes = more.sizes ?? sizesOf(total);
  const reach = reachOf(more.wires);
  if (shape === "mesh") {
    const bands = total <= MOST_IN_BAND ? [...sizes, /** @type {Size} */ ("tiny")].map((size) => band(hosts, width, size, more)) : [];
    const found = bands.find((plan) => plan);
    if (found) return found;
    return { ...layout(hosts, "none", width, more), left: true };
  }
  if (hosts.length === 1) return oneHost(hosts[0], shape, width, sizes, 2 * reach + 12, more);
  const lanes = shape === "ring" ? 3 * reach + 12 : PAD;
  const columns = (/** @type {Size} */ size, side = lanes) => columnsOf(hosts, width, size, side, more);
  // Many hosts below each other are never seen at once: rather ranks without words.
  if (hosts.length > 3 && total > 16 && columns("small") === 1) sizes.push("tiny");
  // A ring in two rows of equal hosts is closed without lanes beside it.
  const equal = hosts.length % 2 === 0 && hosts.every((ranks) => ranks.length === hosts[0].length);
  const even = sizes.find((one) => equal && columns(one, PAD) * 2 === hosts.length && acrossOf(hosts, width - 2 * PAD, one, more).rows === 1);
  const most = Math.max(...sizes.map((one) => columns(one)));
  const beside = sizes.filter((one) => columns(one) === most);
  const roomy = beside.find((one) => shape === "ring" && most > 1 && widthsOf(hosts, width, one, lanes, more).gap >= LEAST_LABELLED);
  const size = even ?? roomy ?? beside[0];
  return manyHosts(hosts, shape, width, size, even ? PAD : lanes, more);
}

/** @param {number} total @returns {Size[]} sizes of cards for `total` ranks, the largest first */
const sizesOf = (total) => (total <= 8 ? ["large", "medium", "small"] : total <= 16 ? ["medium", "small"] : ["small"]);

/**
 * The largest cards with which the plan is no higher than `height`. Where none is so low, links are left out, and then
 * it is the lowest.
 * @param {number[][]} hosts
 * @param {Shape} shape
 * @param {number} width
 * @param {More} more
 * @param {number} height
 * @returns {Layout}
 */
export function layoutWithin(hosts, shape, width, more, height) {
  const sizes = [...sizesOf(hosts.flat().length), /** @type {Size} */ ("tiny")];
  const plans = [shape, ...(shape === "none" ? [] : [/** @type {Shape} */ ("none")])].flatMap((one) =>
    sizes.map((_, i) => {
      const plan = layout(hosts, one, width, { ...more, low: true, sizes: sizes.slice(i) });
      return one === shape ? plan : { ...plan, left: true };
    }));
  return plans.find((plan) => plan.height <= height) ?? plans.reduce((low, plan) => (plan.height < low.height ? plan : low));
}

/**
 * @param {number} value
 * @param {number} low
 * @param {number} high
 */
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

/** @param {number} [wires] @returns {number} pixels on either side of the middle line of a link that its directions take */
export const reachOf = (wires = 1) => 4 + 5 * wires;

/** @param {number} width of a host @returns {"wide" | "narrow" | "slim"} how its head is written */
export const headOf = (width) => (width < SLIM ? "slim" : width < NARROW ? "narrow" : "wide");

/**
 * @param {number} width of a host
 * @param {More} more
 */
const headHeight = (width, more) => more.low ? PLAIN_HEAD : HEADS[headOf(width)] + (more.network ? NETWORK : 0);

/**
 * @param {number[]} ranks
 * @param {Shape} shape
 * @param {number} width
 * @param {Size[]} sizes
 * @param {number} side pixels left and right that lanes take
 * @param {More} more
 * @returns {Layout}
 */
function oneHost(ranks, shape, width, sizes, side, more) {
  const n = ranks.length;
  const wanted = n <= 3 ? n : Math.ceil(n / 2);
  const gapOf = (/** @type {Size} */ one) => (width - 2 * PAD - 16 - wanted * CARDS[one][0]) / Math.max(1, wanted - 1);
  const fits = sizes.find((one) => one !== "tiny" && n <= 16 && gapOf(one) >= LEAST_GAP[one]);
  const size = fits ?? sizes.findLast((one) => one !== "tiny") ?? "tiny";
  const [w, h] = CARDS[size];
  const inner = width - 2 * (fits ? PAD + 8 : side);
  const fit = fits ? wanted : Math.max(1, Math.floor((inner + LEAST_GAP[size]) / (w + LEAST_GAP[size])));
  const columns = n > 16 ? evenRows(n, fit) : clamp(wanted, 1, fit);
  const rows = Math.ceil(n / columns);
  const gap = columns > 1 ? clamp((inner - columns * w) / (columns - 1), Math.min(14, LEAST_GAP[size]), size === "large" ? 230 : n > 16 ? 36 : 110) : 0;
  const whole = columns * w + (columns - 1) * gap;
  const left = (width - whole) / 2;
  const head = headHeight(width, { low: more.low });
  const rowGap = more.low && size === "tiny" ? TIGHT.rowGap : ROW_GAP[size];
  /** @type {Map<number, Box>} */
  const boxes = new Map();
  ranks.forEach((rank, i) => {
    const row = Math.floor(i / columns);
    const inRow = Math.min(columns, n - row * columns);
    // Of two rows both end at the same sides, however many ranks they have.
    const step = rows === 2 && inRow > 1 ? (whole - w) / (inRow - 1) : w + gap;
    const along = (i % columns) * step;
    const back = row % 2 === 1 && shape === "ring";
    const x = back ? left + whole - w - along : left + along;
    boxes.set(rank, { x: Math.round(x), y: head + row * (h + rowGap), w, h });
  });
  const bottom = head + rows * h + (rows - 1) * rowGap;
  const loops = shape === "ring" && n > 2 && (rows % 2 === 1 || n === columns + 1);
  const host = { x: 0, y: 0, w: width, h: bottom + (loops ? (n > 16 ? LOOP : BELOW) : 0) + PAD, headAtBottom: false };
  const gaps = Array.from({ length: rows - 1 }, (_, row) => /** @type {[number, number]} */ ([head + row * (h + rowGap) + h, head + (row + 1) * (h + rowGap)]));
  return { width, height: host.h, size, head, shape, hosts: [host], ranks: boxes, bottom, gaps };
}

/**
 * Columns with which the ranks fill an even number of rows, so that the last rank stands below the first.
 * @param {number} n
 * @param {number} fit
 */
function evenRows(n, fit) {
  for (let columns = Math.min(fit, 32); columns >= 4; columns--)
    if (n % columns === 0 && (n / columns) % 2 === 0 && 3 * columns * columns >= n) return columns;
  return Math.min(fit, 16);
}

/**
 * What is between ranks and around them, and between hosts, at the least.
 * @param {Size} size
 * @param {More} more
 */
const roomOf = (size, more) => more.low && size === "tiny" ? TIGHT
  : { pad: PAD, gap: LEAST_GAP.small, between: LEAST_BETWEEN, rowGap: ROW_GAP.small };

/**
 * @param {number[][]} hosts
 * @param {number} width
 * @param {Size} size
 * @param {More} more
 */
function acrossOf(hosts, width, size, more) {
  const [w] = CARDS[size];
  const { pad, gap } = roomOf(size, more);
  const most = Math.max(1, ...hosts.map((ranks) => ranks.length));
  const fit = Math.max(1, Math.floor((width - 2 * pad + gap) / (w + gap)));
  const across = Math.min(most, 4, fit);
  const least = Math.max(more.low ? LEAST_PLAIN_HOST : LEAST_HOST, across * w + (across - 1) * gap + 2 * pad);
  return { across, rows: Math.ceil(most / across), least };
}

/**
 * How many hosts stand beside each other.
 * @param {number[][]} hosts
 * @param {number} width
 * @param {Size} size
 * @param {number} side
 * @param {More} more
 */
function columnsOf(hosts, width, size, side, more) {
  const count = hosts.length;
  const { least } = acrossOf(hosts, width - 2 * side, size, more);
  const { between } = roomOf(size, more);
  const wanted = count <= 3 ? count : count <= 8 ? Math.ceil(count / 2) : Math.ceil(Math.sqrt(count * 1.5));
  return clamp(Math.floor((width - 2 * side + between) / (least + between)), 1, wanted);
}

/**
 * How wide hosts are, and what is between them.
 * @param {number[][]} hosts
 * @param {number} width
 * @param {Size} size
 * @param {number} side
 * @param {More} more
 */
function widthsOf(hosts, width, size, side, more) {
  const [w] = CARDS[size];
  const columns = columnsOf(hosts, width, size, side, more);
  const { across, rows, least } = acrossOf(hosts, width - 2 * side, size, more);
  const { between } = roomOf(size, more);
  const room = (width - 2 * side - (columns - 1) * BETWEEN[size]) / columns;
  const boxW = Math.floor(clamp(room, least, Math.max(270, across * w + (across - 1) * INSIDE[size] + 2 * PAD)));
  const gap = columns > 1 ? clamp((width - 2 * side - columns * boxW) / (columns - 1), between, 260) : 0;
  return { columns, across, rows, boxW, gap };
}

/**
 * @param {number[][]} hosts
 * @param {Shape} shape
 * @param {number} width
 * @param {Size} size
 * @param {number} side
 * @param {More} more
 * @returns {Layout}
 */
function manyHosts(hosts, shape, width, size, side, more) {
  const [w, h] = CARDS[size];
  const { columns, across, rows, boxW, gap } = widthsOf(hosts, width, size, side, more);
  const { pad, rowGap: lineGap } = roomOf(size, more);
  const inside = across > 1 ? (boxW - 2 * pad - across * w) / (across - 1) : 0;
  const head = headHeight(boxW, more);
  const boxH = head + rows * h + (rows - 1) * lineGap + pad;
  const rowGap = shape === "none" ? (more.low ? TIGHT.between : 20) : ROWS_APART[size];
  const left = (width - columns * boxW - (columns - 1) * gap) / 2;
  /** @type {Map<number, Box>} */
  const boxes = new Map();
  const placed = hosts.map((ranks, i) => {
    const row = Math.floor(i / columns);
    const back = row % 2 === 1 && shape === "ring";
    const column = back ? columns - 1 - (i % columns) : i % columns;
    const box = { x: Math.round(left + column * (boxW + gap)), y: row * (boxH + rowGap), w: boxW, h: boxH };
    const top = box.y + (back ? pad : head);
    const taken = shape === "ring" ? Math.ceil(ranks.length / rows) : Math.min(across, ranks.length);
    const width = taken * w + (taken - 1) * inside;
    ranks.forEach((rank, k) => {
      // Those of a ring go down and up again, and so end beside the host that comes next.
      const along = shape === "ring" ? Math.floor(k / rows) : k % across;
      const line = shape !== "ring" ? Math.floor(k / across) : along % 2 === 0 ? k % rows : rows - 1 - (k % rows);
      const at = back ? taken - 1 - along : along;
      const x = box.x + (boxW - width) / 2 + at * (w + inside);
      boxes.set(rank, { x: Math.round(x), y: top + line * (h + lineGap), w, h });
    });
    return { ...box, headAtBottom: back };
  });
  const bottom = Math.max(...placed.map((box) => box.y + box.h));
  const hostRows = Math.ceil(hosts.length / columns);
  const loops = shape === "ring" && hostRows % 2 === 1;
  const gaps = Array.from({ length: hostRows - 1 }, (_, row) => /** @type {[number, number]} */ ([row * (boxH + rowGap) + boxH, (row + 1) * (boxH + rowGap)]));
  return { width, height: bottom + (loops ? BELOW + PAD : 0), size, head, shape, hosts: placed, ranks: boxes, bottom, gaps };
}

/**
 * Two rows that face each other, null if there is no room for them.
 * @param {number[][]} hosts
 * @param {number} width
 * @param {Size} size
 * @param {More} more
 * @returns {Layout | null}
 */
function band(hosts, width, size, more) {
  const [w, h] = CARDS[size];
  const alone = hosts.length === 1;
  const half = Math.ceil((alone ? hosts[0].length : hosts.length) / 2);
  const groups = alone ? [hosts[0].slice(0, half), hosts[0].slice(half)] : hosts;
  const rows = alone ? groups.map((one) => [one]) : [groups.slice(0, half), groups.slice(half)];
  const apart = LEAST_GAP[size === "large" ? "medium" : size];
  const least = groups.map((ranks) => Math.max(alone ? 0 : LEAST_HOST, ranks.length * w + (ranks.length - 1) * apart + 2 * PAD));
  const leastOf = new Map(groups.map((group, i) => [group, least[i]]));
  const free = rows.map((row) => width - row.reduce((sum, group) => sum + (leastOf.get(group) ?? 0), 0) - (row.length - 1) * PAD);
  if (Math.min(...free) < 0) return null;
  const total = hosts.flat().length;
  const space = Math.round(60 + (more.low ? 5 : 8) * total);
  const head = headHeight(alone ? width : Math.min(...least), alone ? { low: more.low } : more);
  const tops = [head, head + h + space];
  /** @type {Map<number, Box>} */
  const boxes = new Map();
  /** @type {Map<number[], HostBox>} */
  const placed = new Map();
  rows.forEach((row, at) => {
    // What is left over makes hosts wider, up to a limit, and then parts them.
    const wider = Math.min(free[at] / row.length, alone ? free[at] : 160);
    const between = PAD + (row.length > 1 ? Math.min(120, (free[at] - wider * row.length) / (row.length - 1)) : 0);
    const whole = row.reduce((sum, group) => sum + (leastOf.get(group) ?? 0) + wider, 0) + (row.length - 1) * between;
    let x = (width - whole) / 2;
    for (const group of at ? [...row].reverse() : row) {
      const boxW = (leastOf.get(group) ?? 0) + wider;
      const y = at ? tops[1] - PAD : 0;
      placed.set(group, { x: Math.round(x), y, w: Math.floor(boxW), h: head + h + PAD, headAtBottom: at === 1 });
      const gap = group.length > 1 ? Math.min(alone ? 150 : 60, (boxW - 2 * PAD - group.length * w) / (group.length - 1)) : 0;
      const start = x + (boxW - group.length * w - (group.length - 1) * gap) / 2;
      group.forEach((rank, k) => boxes.set(rank, { x: Math.round(start + (at ? group.length - 1 - k : k) * (w + gap)), y: tops[at], w, h }));
      x += boxW + between;
    }
  });
  const bottom = tops[1] + h + (alone ? PAD : head);
  const all = alone ? [{ x: 0, y: 0, w: width, h: bottom, headAtBottom: false }] : hosts.map((group) => /** @type {HostBox} */ (placed.get(group)));
  return { width, height: bottom, size, head, shape: "mesh", hosts: all, ranks: boxes, bottom, gaps: [[tops[0] + h, tops[1]]] };
}
