import assert from "node:assert/strict";
import { test } from "node:test";
import { advice, doing, fastest, findings, hostsOf, kindOf, median, operations, shapeOf, stateOf, sum, thickness, wiresOf } from "../src/snapshot.js";

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

test("a line is as thick as its cable is fast, and, where that is unknown, as its rate is high among those", () => {
  const link = { source: 0, target: 1, kind: "ethernet" };
  const [slow, fast] = [{ link, nominal: 10e9, rate: 1.2e9 }, { link, nominal: 40e9, rate: 0 }];
  const [most, some, none] = [{ link, rate: 4e6 }, { link, rate: 1e6 }, { link }];
  const top = fastest([slow, fast, most, some, none]);
  const thick = (/** @type {import("../src/types.js").LinkView} */ view) => thickness(view, top);
  const about = (/** @type {number} */ value, /** @type {number} */ wanted) => assert.ok(Math.abs(value - wanted) < 0.01, `${value}`);
  about(thick(slow), 2.375);
  about(thick(fast), 3.5);
  about(thick(most), thick(fast));
  about(thick(some), thick(slow));
  about(thick(none), 1.25);
  assert.ok(thickness(none, fastest([])) < thick(some));
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
  assert.ok(Math.abs((found[0].share ?? 0) - 0.8) < 1e-6);
});

test("the links of a mesh of 256 ranks are gone through in no time", () => {
  const ends = Array.from({ length: 256 * 256 }, (_, i) => /** @type {[number, number]} */ ([i >> 8, i & 255])).filter(([a, b]) => a !== b);
  const mesh = world(256, ends);
  const before = performance.now();
  assert.equal(findings(mesh).length, 65_280);
  const took = performance.now() - before;
  assert.ok(took < 1000, `${took} ms, and 100 ms on a machine at rest`);
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

/** @param {number} seconds that ranks 0 and 2 have waited for rank 1 */
function hanging(seconds) {
  const snapshot = world(3, []);
  const collective = { number: 13, op: "all_sum", shape: [3], dtype: "float32", nbytes: 12 };
  for (const rank of [0, 2]) Object.assign(snapshot.ranks[rank], { state: "waiting", since: seconds, collective });
  Object.assign(snapshot.ranks[1], { line: 4, source: "time.sleep(8)" });
  return snapshot;
}

test("a rank that others wait for is named with its line, and can be interrupted", () => {
  const found = advice(hanging(5), 1.5);
  assert.equal(found?.text, "Ranks 0, 2 wait in all_sum #13 f32[3] for rank 1 (line 4: time.sleep(8)), for 6 s.");
  assert.deepEqual([found?.button, found?.verb, found?.ranks], ["Interrupt rank 1", "interrupt", [1]]);
  assert.deepEqual([advice(hanging(3), 0)?.button, advice(hanging(1), 0)], ["", null]);
});

test("a rank in a collective exchanges until that takes long", () => {
  const states = (/** @type {number} */ seconds, behind = 0) => hanging(seconds).ranks.map((rank) => stateOf(rank, behind));
  assert.deepEqual(states(1), ["exchanging", "running", "exchanging"]);
  assert.deepEqual(states(1, 1.5), ["waiting", "running", "waiting"]);
  assert.deepEqual(states(5), ["waiting", "running", "waiting"]);
});

test("a rank that finished the cell is not interrupted: the collective is aborted", () => {
  const snapshot = hanging(5);
  Object.assign(snapshot.ranks[1], { state: "idle", line: undefined });
  assert.deepEqual([advice(snapshot, 0)?.button, advice(snapshot, 0)?.ranks], ["Abort collective", [null]]);
  assert.match(advice(snapshot, 0)?.text ?? "", /for rank 1 \(idle\)/);
});

test("no rank is late where all are in the collective, nor where only some are to be in it", () => {
  const snapshot = hanging(5);
  Object.assign(snapshot.ranks[1], { state: "waiting", since: 4, collective: snapshot.ranks[0].collective });
  assert.equal(advice(snapshot, 0), null);
  for (const rank of snapshot.ranks) rank.collective = { .../** @type {any} */ (rank.collective), shared: false };
  snapshot.ranks[1].state = "running";
  assert.equal(advice(snapshot, 0), null);
});

test("dead ranks come first, and are healed", () => {
  const snapshot = hanging(5);
  Object.assign(snapshot.ranks[1], { state: "dead", cause: "killed by SIGKILL" });
  assert.deepEqual(advice(snapshot, 0), { text: "Rank 1 is dead: killed by SIGKILL.", kind: "bad", button: "Heal", verb: "heal", ranks: [null] });
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

test("what became of the last cell of an idle rank is said", () => {
  assert.equal(doing({ rank: 0, host: "a", state: "idle", cause: "last cell interrupted" }), "last cell interrupted");
  assert.equal(doing({ rank: 0, host: "a", state: "idle" }), "");
});

test("a host is a Mac, has GPUs, or is a machine of which that is not known", () => {
  const rank = { rank: 0, host: "a" };
  assert.equal(kindOf({ name: "a", model: "Mac Studio (2025)" }, [{ ...rank, gpu: { id: "" } }]), "mac");
  assert.equal(kindOf({ name: "a", chip: "Apple M3 Ultra" }, [rank]), "mac");
  assert.equal(kindOf({ name: "a", model: "PowerEdge" }, [{ ...rank, gpu: { id: "GPU-1" } }]), "gpus");
  assert.equal(kindOf({ name: "a", model: "Machine" }, [rank]), "machine");
});
