// The lines of links: around ranks and the heads of hosts, never through them. Pure geometry in pixels, no page.

import { reachOf } from "./layout.js";

/** @typedef {import("./layout.js").Box} Box */
/** @typedef {import("./layout.js").Layout} Layout */
/** @typedef {[number, number]} Point */
/** @typedef {{x: number, y: number, room: number, upright: boolean, inward: number, low: boolean, onward: boolean}} Place of a
 *   label: the middle of its piece of the line; `room` in pixels for its text; `inward` 1 if that is to the right of an
 *   upright line, -1 if to the left; `low` if there is no height for more than the rates; `onward` if the link goes
 *   right or down there */
/** @typedef {{d: string, tip: string, place: Place | null}} Way */

const OFF = 4; // pixels between the middle of a pair's lines and each direction
const NEXT = 5; // to the next wire of the same direction
const OUT = 20; // between a box and a lane beside it
const BEND = 6; // between a host and the nearest line of a link that turns beside it
const CLEAR = 3;
const LEAST_TIP = 18;
const CAPTION = 36; // pixels from a line to below the caption of its link

/**
 * @param {Layout} plan
 * @param {number} source
 * @param {number} target
 * @param {number} [nth] of several links of the same two ranks, each further out
 * @param {number} [wires] how many there are, at the most
 * @returns {Way | null} null if it cannot be drawn
 */
export function route(plan, source, target, nth = 0, wires = 1) {
  const [from, to] = [plan.ranks.get(source), plan.ranks.get(target)];
  if (!from || !to || plan.shape === "none") return null;
  if (plan.shape === "mesh") return across(plan, from, to, nth);
  const size = plan.ranks.size;
  const forward = (target - source + size) % size === 1 && (size > 2 || source === 0);
  const [a, b] = forward ? [source, target] : [target, source];
  const points = middleLine(plan, a, b, wires);
  const line = aside(forward ? points : [...points].reverse(), OFF + NEXT * nth);
  const place = nth ? null : placeOf(plan, points, plan.ranks.get(a), plan.ranks.get(b), wires);
  return { d: straight(line), tip: arrow(line), place: place && { ...place, onward: place.onward === forward } };
}

/**
 * The line that both directions of a ring's link run beside: the first of several that meets nothing.
 * @param {Layout} plan
 * @param {number} a
 * @param {number} b the rank after it
 * @param {number} wires
 * @returns {Point[]}
 */
function middleLine(plan, a, b, wires) {
  const [from, to] = /** @type {[Box, Box]} */ ([plan.ranks.get(a), plan.ranks.get(b)]);
  const closes = b < a;
  const reach = reachOf(wires);
  const alone = plan.hosts.length === 1;
  const edges = alone ? [...plan.ranks.values()] : plan.hosts;
  const out = reach + (closes && !alone && plan.gaps.length > 1 ? 2 * reach + 2 : 0) + 4;
  const left = Math.min(...edges.map((box) => box.x)) - out;
  const right = Math.max(...edges.map((box) => box.x + box.w)) + out;
  const below = plan.bottom + OUT + reach;
  const [ax, ay, bx, by] = [from.x + from.w / 2, from.y + from.h / 2, to.x + to.w / 2, to.y + to.h / 2];
  const [aEast, aWest, aSouth] = [[from.x + from.w, ay], [from.x, ay], [ax, from.y + from.h]];
  const [bEast, bWest, bSouth] = [[to.x + to.w, by], [to.x, by], [bx, to.y + to.h]];
  const [ends, starts] = ax < bx ? [aEast, bWest] : [aWest, bEast];
  // Between hosts the link turns beside the second, which leaves the most room for a label.
  const between = betweenHosts(plan, from, to);
  const mid = between ? (ax < bx ? between[1] - reach - BEND : between[0] + reach + BEND) : (ends[0] + starts[0]) / 2;
  const ways = /** @type {Point[][]} */ ([
    ay === by ? [ends, starts] : ax === bx ? [[ax, ay < by ? from.y + from.h : from.y], [bx, ay < by ? to.y : to.y + to.h]] : null,
    closes ? null : [ends, [mid, ay], [mid, by], starts],
    closes ? [aSouth, [ax, below], [bx, below], bSouth] : [aEast, [right, ay], [right, by], bEast],
    [aWest, [left, ay], [left, by], bWest],
    [aSouth, [ax, below], [left, below], [left, by], bWest],
    [aEast, [right, ay], [right, below], [left, below], [left, by], bWest],
  ].filter((points) => points));
  const solid = [...plan.ranks.values(), ...plan.hosts.map((host) => headBox(plan, host))];
  const free = (/** @type {Point[]} */ points) => solid.every((box) => points.every((point, i) => !i || !meets(box, points[i - 1], point, box === from || box === to ? -1 : reach)));
  return ways.find(free) ?? ways[ways.length - 1];
}

/**
 * @param {Layout} plan
 * @param {import("./layout.js").HostBox} host
 * @returns {Box}
 */
const headBox = (plan, host) => ({ x: host.x, y: host.headAtBottom ? host.y + host.h - plan.head : host.y, w: host.w, h: plan.head - CLEAR });

/**
 * @param {Box} box
 * @param {Point} a
 * @param {Point} b level or upright from `a`
 * @param {number} reach
 */
function meets(box, [ax, ay], [bx, by], reach) {
  return Math.max(ax, bx) + reach > box.x && Math.min(ax, bx) - reach < box.x + box.w
    && Math.max(ay, by) + reach > box.y && Math.min(ay, by) - reach < box.y + box.h;
}

/**
 * Where the rates of a link stand, null if nowhere.
 * @param {Layout} plan
 * @param {Point[]} points
 * @param {Box | undefined} from
 * @param {Box | undefined} to
 * @param {number} wires
 * @returns {Place | null}
 */
function placeOf(plan, points, from, to, wires) {
  if (plan.ranks.size > 16) return null;
  const single = points.length === 2;
  // Whether a caption would lie on the rates of the link below the hosts, from the last rank to the first.
  const atLoop = (/** @type {number} */ y) => plan.height > plan.bottom && y + CAPTION > plan.bottom;
  const between = from && to ? betweenHosts(plan, from, to) : null;
  const [[startX, startY], [turn, turnY]] = points;
  if (!single && between && startY === turnY && turn > between[0] && turn < between[1]) {
    const [low, high] = turn > startX ? [between[0], turn - reachOf(wires)] : [turn + reachOf(wires), between[1]];
    return { x: (low + high) / 2, y: turnY, room: high - low - 10, upright: false, inward: 1, low: atLoop(turnY), onward: turn > startX };
  }
  const below = points.findIndex(([, y], i) => points[i + 1]?.[1] === y && (single || y > plan.bottom));
  const at = below < 0 ? points.findIndex(([x], i) => points[i + 1]?.[0] === x) : below;
  if (at < 0) return null;
  const [[ax, ay], [bx, by]] = [points[at], points[at + 1]];
  if (ay === by) {
    // Labels do not lie on the edges of hosts.
    const [low, high] = single && between ? between : [Math.min(ax, bx), Math.max(ax, bx)];
    return { x: (low + high) / 2, y: ay, room: high - low - 10, upright: false, inward: 1, low: single && (between ? atLoop(ay) : plan.size !== "large"), onward: bx > ax };
  }
  const [low, high] = [Math.min(ay, by), Math.max(ay, by)];
  const gap = plan.gaps.find(([top, end]) => top >= low - 2 - plan.head && end <= high + 2 + plan.head && end > low && top < high);
  if (!gap || gap[1] - gap[0] < 40) return null;
  const inward = ax < plan.width / 2 - 1 ? 1 : -1;
  const middle = Math.abs(plan.width / 2 - ax);
  const room = (middle < 30 ? plan.width / 2 - 60 : middle) - 14 - NEXT * wires;
  return { x: ax, y: (gap[0] + gap[1]) / 2, room, upright: true, inward: middle < 30 ? 1 : inward, low: gap[1] - gap[0] < 60, onward: by > ay };
}

/**
 * @param {Layout} plan
 * @param {Box} one
 * @param {Box} other
 * @returns {[number, number] | null} where the room between the hosts of two ranks begins and ends, null if they do not
 *   stand beside each other
 */
function betweenHosts(plan, one, other) {
  const [first, last] = [one, other].map((box) => plan.hosts.find((host) => inside(box, host)));
  if (!first || !last) return null;
  const [low, high] = [Math.min(first.x + first.w, last.x + last.w), Math.max(first.x, last.x)];
  return low < high ? [low, high] : null;
}

/**
 * @param {Box} box
 * @param {Box} host
 */
const inside = (box, host) => box.x >= host.x && box.x < host.x + host.w && box.y >= host.y && box.y < host.y + host.h;

/**
 * A link of a mesh, in the band between the two rows.
 * @param {Layout} plan
 * @param {Box} from
 * @param {Box} to
 * @param {number} nth
 * @returns {Way}
 */
function across(plan, from, to, nth) {
  const [top, bottom] = plan.gaps[0];
  const start = door(plan, from, to);
  const end = door(plan, to, from);
  const away = OFF / 2 + NEXT * nth;
  if (from.y !== to.y) {
    // To its right along the rows, further the more it leans, so that links of the same two ranks lie apart.
    const [dx, dy] = [end[0] - start[0], end[1] - start[1]];
    const shift = -Math.sign(dy) * away * Math.min(2.5, Math.hypot(dx, dy) / Math.abs(dy));
    const line = [start, end].map(([x, y]) => /** @type {Point} */ ([x + shift, y]));
    return { d: straight(line), tip: arrow(line), place: null };
  }
  // Of the same row: a bow into the band, deeper the further it reaches, that stays on its side of the middle.
  const sign = from.y < top ? 1 : -1;
  const depth = Math.min((bottom - top) * 0.6, 14 + Math.abs(end[0] - start[0]) * 0.16) + (from.x < to.x ? away : -away);
  const [y, deep] = [start[1], start[1] + sign * depth];
  const fifth = (end[0] - start[0]) / 5;
  return { d: `M${start[0]} ${y}C${start[0] + fifth} ${deep} ${end[0] - fifth} ${deep} ${end[0]} ${y}`, tip: arrow([[end[0] - fifth, deep], end]), place: null };
}

/**
 * Where the link to another rank leaves a box on its side of the band: from left to right as the others stand.
 * @param {Layout} plan
 * @param {Box} box
 * @param {Box} other
 * @returns {Point}
 */
function door(plan, box, other) {
  const [top, bottom] = plan.gaps[0];
  const turn = (/** @type {Box} */ one) => {
    const dx = one.x + one.w / 2 - box.x - box.w / 2;
    return one.y === box.y ? Math.sign(dx) * (2 + 1 / Math.abs(dx)) : Math.atan2(dx, Math.abs(one.y - box.y)); // bows to near ones outside
  };
  const others = [...plan.ranks.values()].filter((one) => one !== box).map(turn).sort((one, two) => one - two);
  const at = (others.indexOf(turn(other)) + 0.5) / others.length;
  return [box.x + box.w * (0.1 + 0.8 * at), box.y < top ? top + 1 : bottom - 1];
}

/**
 * The line to the right of one that it goes along.
 * @param {Point[]} points
 * @param {number} far
 * @returns {Point[]}
 */
function aside(points, far) {
  const normals = points.slice(1).map(([x, y], i) => {
    const [dx, dy] = [x - points[i][0], y - points[i][1]];
    const length = Math.hypot(dx, dy) || 1;
    return [-dy / length, dx / length];
  });
  return points.map(([x, y], i) => {
    const [before, after] = [normals[i - 1] ?? [0, 0], normals[i] ?? [0, 0]];
    return /** @type {Point} */ ([x + far * (before[0] + after[0]), y + far * (before[1] + after[1])]);
  });
}

/** @param {Point[]} points */
const straight = (points) => `M${points.map((point) => point.map((value) => Math.round(value * 10) / 10).join(" ")).join("L")}`;

/** @param {Point[]} points @returns {string} empty where the last piece is too short for it */
function arrow(points) {
  const [[ax, ay], [bx, by]] = points.slice(-2);
  const far = Math.hypot(bx - ax, by - ay);
  if (far < LEAST_TIP) return "";
  const [ux, uy] = [(bx - ax) / far, (by - ay) / far];
  const [cx, cy] = [bx - ux * 7, by - uy * 7];
  return `M${bx} ${by}L${cx - uy * 3.6} ${cy + ux * 3.6}L${cx + uy * 3.6} ${cy - ux * 3.6}z`;
}
