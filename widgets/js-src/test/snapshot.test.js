import assert from "node:assert/strict";
import { test } from "node:test";
import { findings, hostsOf, median, operations, shapeOf, sum, wiresOf } from "../src/snapshot.js";

/** @typedef {import("../src/types.js").Snapshot} Snapshot */

/** @param {number} size @param {[number, number][]} ends @returns {Snapshot} */
function world(size, ends) {
  return {
    name: "main", backend: "ring", state: "whole", generation: 1,
    ranks: Array.from({ length: size }, (_, rank) => ({ rank, host: "a", state: /** @type {const} */ ("running") })),
    links: ends.map(([source, target]) => ({ link: { source, target, kind: "ethernet", interface: "eth0" }, rate: 1e9, nominal: 10e9, sent: 1 })),
  };
}

test("a ring is told from a mesh", () => {
  assert.equal(shapeOf(world(4, [[0, 1], [1, 2], [2, 3], [3, 0], [0, 3]])), "ring");
  assert.equal(shapeOf(world(4, [[0, 1], [0, 2]])), "mesh");
  assert.equal(shapeOf(world(4, [])), "none");
});

test("several cables of the same two ranks are counted, in each direction", () => {
  const links = /** @type {any} */ (world(3, [[0, 1], [1, 0], [0, 1], [1, 0], [1, 2]]).links);
  assert.deepEqual(wiresOf(links).map(({ nth, all }) => [nth, all.length]), [[0, 2], [0, 2], [1, 2], [1, 2], [0, 1]]);
});

test("sums and medians know what is unknown", () => {
  assert.equal(sum([undefined, null]), null);
  assert.equal(sum([0, undefined]), 0);
  assert.equal(median([3, null, 1]), 2);
});

test("a slow link is named with its ends and its plug", () => {
  const slow = world(4, [[0, 1], [1, 2], [2, 3], [3, 0]]);
  for (const [i, view] of /** @type {any} */ (slow.links).entries()) view.rtt = i === 1 ? 21e-3 : 0.3e-3;
  const found = findings(slow);
  assert.deepEqual(found.map((one) => one.slow), [false, true, false, false]);
  assert.match(found[1].why, /link 1 → 2 \(ethernet, eth0\) is slow: a round trip takes 21\.0 ms, where others of its kind take 300 µs/);
  assert.equal(found[0].share, 0.8);
});

test("a port that came up at a lower speed is slow", () => {
  const slow = world(4, [[0, 1], [1, 2], [2, 3], [3, 0]]);
  /** @type {any} */ (slow.links)[2].nominal = 1e9;
  assert.deepEqual(findings(slow).map((one) => one.slow), [false, false, true, false]);
});

test("the way round that a ring does not use is not slow, nor are links that rest", () => {
  const ring = world(2, [[0, 1], [1, 0]]);
  /** @type {any} */ (ring.links)[1].rate = 0;
  assert.ok(findings(ring).every((one) => !one.slow));
  for (const [i, view] of /** @type {any} */ (ring.links).entries()) Object.assign(view, { rate: 900, rtt: i ? 1 : 1e-4 });
  assert.ok(findings(ring).every((one) => !one.slow));
});

test("what nobody can count (shared memory) is unknown, not missing", () => {
  const mpi = world(2, [[0, 1], [1, 0]]);
  for (const view of /** @type {any} */ (mpi.links)) Object.assign(view, { rate: null, sent: null, nominal: null });
  assert.ok(findings(mpi).every((one) => !one.missing && !one.slow && one.why === ""));
});

test("a link of living ranks of which nothing is known is missing; with a dead rank it is not", () => {
  const cut = world(2, [[0, 1], [1, 0]]);
  Object.assign(/** @type {any} */ (cut.links)[0], { rate: undefined, sent: undefined });
  assert.ok(findings(cut)[0].missing);
  cut.ranks[1].state = "dead";
  assert.ok(!findings(cut)[0].missing);
});

test("hosts come in the order of their first rank, those without ranks last", () => {
  const snapshot = world(2, []);
  snapshot.ranks[0].host = "b";
  snapshot.hosts = [{ name: "c" }, { name: "a" }, { name: "b" }];
  assert.deepEqual(hostsOf(snapshot).map((one) => one.host.name), ["b", "a", "c"]);
});

test("operations are summed over ranks, and a time that no rank took is unknown", () => {
  const snapshot = world(2, []);
  snapshot.ranks[0].ops = [{ op: "all_sum", calls: 2, nbytes: 30, smallest: 10, largest: 20, wait: 1 }];
  snapshot.ranks[1].ops = [{ op: "all_sum", calls: 1, nbytes: 5, smallest: 5, largest: 5 }];
  assert.deepEqual(operations(snapshot), [
    { op: "all_sum", ranks: 2, calls: 3, nbytes: 35, smallest: 5, largest: 20, transfer: null, wait: 1 },
  ]);
});
