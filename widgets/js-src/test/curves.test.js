import assert from "node:assert/strict";
import { test } from "node:test";
import { Curves, MOST_CURVES, MOST_POINTS } from "../src/curves.js";
import { figure } from "../src/units.js";

/** @param {[number, string, number, number | string][]} told rank, name, step, value */
function curvesOf(told) {
  const curves = new Curves();
  curves.add(told.map(([rank, name, step, value]) => [rank, name, 1, step, value, 0]));
  return curves;
}

test("ranks that log at different steps share an axis, and no line breaks there", () => {
  const curves = curvesOf([[1, "loss", 0, 4], [1, "loss", 2, 3], [0, "loss", 1, 8], [0, "loss", 2, 5], [0, "acc", 0, 1]]);
  assert.deepEqual(curves.names, ["loss", "acc"]);
  assert.deepEqual(curves.ranks("loss"), [0, 1]);
  assert.deepEqual(curves.columns("loss", "rank"), [[0, 1, 2], [undefined, 8, 5], [4, undefined, 3]]);
  assert.deepEqual(curves.columns("loss", "range"), [[0, 1, 2], [4, 8, 4], [4, 8, 5], [4, 8, 3]]);
});

test("what is no finite number breaks the line, also that of the mean, and is told as it is", () => {
  const curves = curvesOf([[0, "loss", 0, 1], [0, "loss", 1, "nan"], [1, "loss", 1, 2]]);
  assert.deepEqual(curves.columns("loss", "rank")[1], [1, null]);
  assert.deepEqual(curves.columns("loss", "range").slice(1), [[1, null], [1, null], [1, null]]);
  assert.equal(curves.last("loss", 0), "nan");
});

test("a loop that starts again restarts the curve of its rank, other ranks' stay", () => {
  const curves = curvesOf([[0, "loss", 0, 1], [0, "loss", 1, 2], [1, "loss", 1, 7], [0, "loss", 0, 9]]);
  assert.deepEqual(curves.columns("loss", "rank"), [[0, 1], [9, undefined], [undefined, 7]]);
});

test("a cell that starts again drops the curves of an earlier cell on all ranks, and one that goes on keeps them", () => {
  const curves = curvesOf([[0, "loss", 0, 1], [0, "loss", 1, 2], [1, "loss", 1, 7], [1, "acc", 1, 5]]);
  curves.add([[0, "loss", 2, 2, 3, 0]]);
  assert.deepEqual(curves.columns("loss", "rank"), [[0, 1, 2], [1, 2, 3], [undefined, 7, undefined]]);
  curves.add([[0, "loss", 3, 0, 9, 0], [2, "loss", 3, 0, 8, 0]]);
  assert.deepEqual(curves.columns("loss", "rank"), [[0], [9], [8]]);
  assert.deepEqual(curves.ranks("loss"), [0, 2]);
  assert.deepEqual(curves.ranks("acc"), [1]);
  assert.equal(curves.count, 3);
});

test("a rank that went on in the running cell keeps its curve when another starts again", () => {
  const curves = new Curves();
  curves.add([[0, "loss", 1, 5, 1, 0], [1, "loss", 1, 6, 1, 0], [0, "loss", 2, 6, 1, 0], [1, "loss", 2, 5, 1, 0]]);
  assert.deepEqual([0, 1].map((rank) => curves.byName.get("loss")?.get(rank)?.steps), [[5, 6], [5]]);
});

test("a curve with few points keeps them when others are thinned", () => {
  const curves = curvesOf([[1, "loss", 1, 7], [1, "loss", 3, 8]]);
  for (let step = 0; step <= MOST_POINTS; step++) curves.add([[0, "loss", 1, step, step, 0]]);
  assert.deepEqual(curves.byName.get("loss")?.get(1)?.steps, [1, 3]);
});

test("a long run is thinned and still there from its first step to its last", () => {
  const curves = new Curves();
  for (let step = 0; step < 10 * MOST_POINTS; step++) curves.add([[0, "loss", 1, step, step, 0]]);
  const [steps] = /** @type {number[][]} */ (curves.columns("loss", "rank"));
  assert.ok(steps.length <= MOST_POINTS && steps.length > MOST_POINTS / 2);
  assert.equal(steps[0], 0);
  assert.equal(steps.at(-1), 10 * MOST_POINTS - 1);
});

test("a long run keeps the same steps of all ranks, also where one began later, and all of those that it alone has", () => {
  const curves = new Curves();
  for (let step = 0; step < 3 * MOST_POINTS; step++) {
    curves.add([[0, "loss", 1, step, 1, 0]]);
    if (step > 100) curves.add([[1, "loss", 1, step, 3, 0]]);
  }
  curves.add([[2, "loss", 1, 0.5, 9, 0]]);
  const [steps, zero, one, two] = /** @type {number[][]} */ (curves.columns("loss", "rank"));
  assert.ok(steps.every((step, i) => step === 0.5 || (zero[i] === 1 && (one[i] === 3) === step > 100)));
  assert.equal(two.filter((value) => value === 9).length, 1);
});

test("where many points have one step, every second point goes", () => {
  const curves = new Curves();
  for (let point = 0; point < 2 * MOST_POINTS; point++) curves.add([[0, "loss", 1, Math.floor(point / 500), point, 0]]);
  const kept = curves.byName.get("loss")?.get(0);
  assert.deepEqual([...new Set(kept?.steps)], Array.from({ length: 8 }, (_, epoch) => epoch));
  assert.ok((kept?.steps.length ?? 0) > MOST_POINTS / 2);
});

test("names without end are not all kept", () => {
  const curves = curvesOf(Array.from({ length: 2 * MOST_CURVES }, (_, i) => /** @type {any} */ ([0, `name ${i}`, 0, 1])));
  assert.equal(curves.names.length, MOST_CURVES);
});

test("figures have five digits at most, and whole ones all of theirs", () => {
  assert.deepEqual([0.123456789, 123456, 3e-7, null].map(figure), ["0.12346", "123456", "3e-7", "unknown"]);
});
