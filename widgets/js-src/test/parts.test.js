import assert from "node:assert/strict";
import { test } from "node:test";
import { pieces, plain } from "../src/ansi.js";
import { sparkline } from "../src/glance.js";
import { Heights } from "../src/heights.js";
import { History } from "../src/history.js";
import { layout } from "../src/layout.js";
import { progress } from "../src/progress.js";
import { route } from "../src/routes.js";

test("a bar of tqdm is read, other text is not", () => {
  assert.deepEqual(progress("epoch 1:  45%|####5     | 9/20 [00:01<00:01]"), { label: "epoch 1", share: 0.45, rest: "9/20 [00:01<00:01]" });
  assert.equal(progress("45% of all | none"), null);
});

test("colours become classes, other escapes go", () => {
  assert.deepEqual(pieces("a\u001b[1;31mb\u001b[0mc"), [
    { text: "a", classes: "" }, { text: "b", classes: "arw-red arw-bold" }, { text: "c", classes: "" },
  ]);
  assert.equal(plain("\u001b]0;title\u0007x\u001b[2K"), "x");
});

test("rows are found by height, with figures between", () => {
  const heights = new Heights(20);
  heights.set([[2, 100], [5, 60]]);
  assert.deepEqual([0, 2, 3, 5, 6].map((row) => heights.top(row)), [0, 40, 140, 180, 240]);
  assert.equal(heights.at(139, 10), 2);
  assert.equal(heights.at(140, 10), 3);
  assert.equal(heights.at(9999, 10), 9);
});

/** @param {number} at @param {number | undefined} rate @param {number} [held] @returns {import("../src/types.js").Snapshot} */
const frame = (at, rate, held) => ({
  name: "m", backend: "ring", state: "whole", generation: 1, at, held, ranks: [{ rank: 0, host: "a", effective: rate }], links: [],
});

test("the chart keeps one row a second, and a gap where nothing was heard", () => {
  const history = new History();
  for (const [at, rate] of [[100.1, 1], [100.8, 2], [101.2, 3], [120, 4]]) history.add(frame(at, rate));
  assert.deepEqual(history.at, [100, 101, 102, 120]);
  assert.deepEqual(history.series.get("effective"), [2, 3, null, 4]);
  assert.deepEqual(history.series.get("wire"), [null, null, null, null]);
});

test("where Python said that nothing changed, the value holds", () => {
  const history = new History();
  history.add(frame(100, 7));
  history.add(frame(110, 9, 109.5));
  assert.equal(history.at.length, 11);
  assert.deepEqual(history.series.get("effective"), [...new Array(10).fill(7), 9]);
});

test("ten minutes are kept", () => {
  const history = new History();
  for (let at = 0; at < 1000; at++) history.add(frame(at, at));
  assert.equal(history.at[0], 399);
});

test("no two ranks overlap, from 1 to 64, on one host and on several, on wide and narrow pages", () => {
  for (const width of [420, 700, 1100])
    for (const size of [1, 2, 3, 4, 5, 7, 8, 12, 16, 32, 64])
      for (const hosts of [1, 2, 4, 8].filter((n) => n <= size))
        for (const shape of /** @type {const} */ (["ring", "mesh"])) {
          const on = Array.from({ length: hosts }, (_, host) =>
            Array.from({ length: size }, (_, rank) => rank).filter((rank) => Math.floor((rank * hosts) / size) === host));
          const plan = layout(on, shape, width);
          const boxes = [...plan.ranks.values()];
          assert.equal(boxes.length, size);
          for (const [i, a] of boxes.entries())
            for (const b of boxes.slice(i + 1)) {
              const apart = a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y;
              assert.ok(apart, `${size} ranks, ${hosts} hosts, ${shape}, ${width} px`);
            }
        }
});

test("many hosts stand beside each other, rather than be read one after the other", () => {
  const on = Array.from({ length: 8 }, (_, host) => Array.from({ length: 8 }, (_, i) => 8 * host + i));
  for (const [width, columns] of [[612, 2], [1006, 2], [330, 1]]) {
    const { hosts, width: wide } = layout(on, "ring", width);
    assert.equal(new Set(hosts.map((host) => host.x)).size, columns, `${width} px`);
    for (const { x, w } of hosts) assert.ok(x >= 39 && x + w <= wide - 39, "there is room for the links beside them");
  }
});

test("the line beside what was logged last has its first and last point, and at most sixty", () => {
  assert.equal(sparkline([[0, 1]]), "");
  assert.equal(sparkline([[0, 3], [5, 1], [10, 2]]), "1.0,2.0 36.0,14.0 71.0,8.0");
  assert.equal(sparkline([[0, 7], [1, 7]]), "1.0,8.0 71.0,8.0");
  const many = sparkline(Array.from({ length: 1000 }, (_, step) => [step, 1 / (step + 1)])).split(" ");
  assert.ok(many.length <= 60);
  assert.equal(many.at(-1), "71.0,14.0");
});

test("links are left out for their number, or for want of room", () => {
  const mesh = (/** @type {number} */ n) => [Array.from({ length: n }, (_, rank) => rank)];
  assert.equal(layout(mesh(16), "mesh", 900).left, undefined);
  assert.equal(layout(mesh(17), "mesh", 900).left, true);
  assert.equal(layout(mesh(16), "mesh", 250).left, true);
  assert.equal(layout([[0, 2], [1, 3]], "ring", 250).left, undefined);
  assert.equal(layout([0, 1].map((odd) => Array.from({ length: 16 }, (_, i) => 2 * i + odd)), "ring", 900).left, true);
  assert.equal(layout([[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]], "ring", 250).left, true);
});

/** @param {string} d the longest straight piece of a line: its middle, and what is square to it */
function middle(d) {
  const points = d.slice(1).split("L").map((point) => point.split(" ").map(Number));
  const pieces = points.slice(1).map((point, i) => ({ a: points[i], b: point, length: Math.hypot(point[0] - points[i][0], point[1] - points[i][1]) }));
  const { a, b, length } = pieces.reduce((best, one) => (one.length > best.length ? one : best));
  return { x: (a[0] + b[0]) / 2, y: (a[1] + b[1]) / 2, normal: [(b[1] - a[1]) / length, (a[0] - b[0]) / length] };
}

test("several links of the same two ranks do not lie on each other, nor on those of the other direction", () => {
  for (const [size, hosts] of [[4, 1], [4, 2], [6, 3]]) {
    const on = Array.from({ length: hosts }, (_, host) => Array.from({ length: size / hosts }, (_, i) => (host * size) / hosts + i));
    for (const shape of /** @type {const} */ (["ring", "mesh"])) {
      const plan = layout(on, shape, 900, { wires: 3 });
      const ways = [0, 1, 2].flatMap((nth) => [route(plan, 0, size - 1, nth, 3), route(plan, size - 1, 0, nth, 3)]);
      const middles = ways.map((way) => middle(way?.d ?? ""));
      for (const [i, a] of middles.entries())
        for (const b of middles.slice(i + 1)) {
          const apart = Math.abs((b.x - a.x) * a.normal[0] + (b.y - a.y) * a.normal[1]);
          assert.ok(apart >= 4, `${apart} px, ${size} ranks, ${hosts} hosts, ${shape}`);
        }
    }
  }
});
