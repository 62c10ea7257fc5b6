import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Curves } from "../src/curves.js";
import { paceInWords } from "../src/glance.js";
import { ofCurves, ofLinks, ofOutput, ofTopology, ofTraffic, ofTrouble, ofWorld, trend } from "../src/headlines.js";
import { layoutWithin } from "../src/layout.js";
import { Output } from "../src/output.js";
import { findings } from "../src/snapshot.js";

/** @param {number} n @param {(i: number) => number} of */
const series = (n, of) => Array.from({ length: n }, (_, i) => of(i));
const noise = (/** @type {number} */ i) => ((i * 7919) % 101) / 101; // jumps about

test("a trend is named where the curve moves more than it jumps", () => {
  assert.equal(trend(series(40, (i) => Math.exp(-i / 30))), "falling");
  assert.equal(trend(series(40, (i) => i + noise(i))), "rising");
  assert.equal(trend(series(40, (i) => 2 + noise(i))), "steady");
  assert.equal(trend(series(40, () => 0)), "steady");
  assert.equal(trend(series(300, (i) => (i < 150 ? 10 - i / 20 : 2.5))), "steady", "of its end only");
  assert.equal(trend([3, 2, 1]), "", "too few");
});

test("what was logged has three digits, also where it is no number", () => {
  const curves = new Curves();
  assert.deepEqual(ofCurves(curves), { text: "" });
  curves.add(series(20, (i) => i).map((i) => [0, "loss", 1, i, Math.exp(-i / 10), 100 + i / 2]));
  assert.equal(ofCurves(curves).text, "loss 0.15 falling");
  curves.add([[0, "loss", 1, 20, "nan", 110]]);
  assert.deepEqual(ofCurves(curves), { text: "loss is not a number", wrong: true });
});

test("the pace is that of the last steps, and starts again with a loop that starts again", () => {
  const curves = new Curves();
  let cell = 1;
  const pace = () => curves.pace(cell);
  assert.equal(pace(), null);
  for (let step = 0; step < 100; step++) curves.add([[0, "loss", 1, step, 1, step < 50 ? step : 50 + (step - 50) / 10]]);
  assert.ok(Math.abs((pace() ?? 0) - 10) < 1e-6);
  curves.add([[0, "loss", 2, 0, 1, 200]]);
  assert.equal(pace(), null);
  cell = 2;
  assert.equal(pace(), null);
  curves.add([[0, "loss", 2, 1, 1, 204]]);
  assert.equal(pace(), 0.25);
  curves.add([[0, "loss", 3, 2, 1, 900]]);
  cell = 3;
  assert.equal(pace(), null, "the pause before a cell that counts on is no step");
  assert.deepEqual([12.34, 4, 0.31, 0.1].map(paceInWords), ["12.3 steps/s", "4 steps/s", "0.31 steps/s", "10 s a step"]);
});

test("points that a page got when it was opened have one time, and tell no pace", () => {
  const curves = new Curves();
  curves.add(series(50, (step) => step).map((step) => [0, "loss", 1, step, 1, 100]));
  assert.equal(curves.pace(1), null);
  curves.add([[0, "loss", 1, 50, 1, 105]]);
  assert.equal(curves.pace(1), 0.2);
});

/** @param {(number | undefined)[]} rates @returns {import("../src/types.js").Snapshot} */
const world = (rates) => ({
  name: "m", backend: "ring", state: "whole", generation: 1,
  ranks: series(rates.length, (rank) => rank).map((rank) => ({
    rank, host: "a", state: "running", effective: rates[rank], ops: [
      { op: "all_gather", calls: 9, nbytes: 10, smallest: 1, largest: 2 }, { op: "all_sum", calls: 2, nbytes: 1e6, smallest: 1, largest: 2 }],
  })),
  links: rates.map((rate, source) => ({ link: { source, target: (source + 1) % rates.length, kind: "loopback", interface: "lo0" }, rate })),
});

test("links and traffic are one figure, and nothing is shown of what is unknown", () => {
  assert.equal(ofLinks(findings(world([1e9, 2e9, 3e9]))).text, "6.00 GB/s on all 3 links");
  assert.equal(ofLinks(findings(world([1e9, 0, 3e9]))).text, "4.00 GB/s on 2 of 3 links");
  assert.equal(ofLinks(findings(world([0, 0, 0]))).text, "no traffic");
  assert.equal(ofLinks(findings(world([undefined, undefined]))).text, "");
  assert.equal(ofTraffic(world([1e9, 3e9])).text, "all_sum 2.00 GB/s");
  assert.equal(ofTraffic(world([0, 0])).text, "no traffic");
  assert.equal(ofTraffic(world([undefined])).text, "all_sum, rate unknown");
  assert.equal(ofTraffic({ ...world([1]), ranks: [] }).text, "");
});

test("the headline of the output is its error, else its last line", () => {
  const output = new Output();
  assert.equal(ofOutput(output).text, "");
  output.take([
    { cell: 1, kind: "begin", ranks: [0, 1], code: "" },
    { cell: 1, kind: "text", ranks: [0, 1], stream: "stdout", text: "step 1\n\u001b[31mstep    2\u001b[0m\n\n" },
  ]);
  assert.equal(ofOutput(output).text, "step 2");
  output.take([{ cell: 1, kind: "error", ranks: [1], ename: "ValueError", evalue: "bad batch", traceback: [] }]);
  assert.deepEqual(ofOutput(output), { text: "ValueError on rank 1", wrong: true, whole: "bad batch" });
});

test("a plan is as low as wanted, with the largest cards that are; else links are left out", () => {
  const one = (/** @type {number} */ n) => [series(n, (i) => i)];
  const hosts = (/** @type {number} */ n, /** @type {number} */ each) => series(n, (host) => host).map((host) => series(each, (i) => host * each + i));
  const few = layoutWithin(one(4), "ring", 900, {}, 300);
  assert.deepEqual([few.size, few.left], ["large", undefined]);
  for (const [on, width] of /** @type {[number[][], number][]} */ ([[one(64), 666], [hosts(8, 8), 894], [hosts(8, 1), 666], [one(16), 666]])) {
    const plan = layoutWithin(on, "ring", width, {}, 310);
    assert.ok(plan.height <= 310, `${on.length} hosts at ${width}: ${plan.height}`);
    assert.equal(plan.ranks.size, on.flat().length);
  }
  const many = layoutWithin(hosts(8, 8), "ring", 666, {}, 310);
  assert.deepEqual([many.shape, many.left], ["none", true]);
});

/** @type {{trouble: string, snapshot: import("../src/types.js").Snapshot}[]} that tests/widgets/test_findings.py reads, too */
const FOUND = JSON.parse(readFileSync(new URL("../../../tests/widgets/findings.json", import.meta.url), "utf-8"));

test("a picture of a world in trouble says so, in the words of the picture that a notebook saves", () => {
  for (const { trouble, snapshot } of FOUND) {
    assert.equal(ofTrouble(snapshot), trouble);
    if (trouble) assert.equal(ofWorld(snapshot), trouble);
    const { text, wrong } = ofTopology(snapshot, findings(snapshot));
    assert.deepEqual([text, Boolean(wrong)], [trouble, Boolean(trouble) && trouble !== "The world is starting"]);
  }
});

test("the title of a picture is trouble of the world, then of its links, then the straggler", () => {
  const straggler = "rank 1 was last in 1 of 2 timed calls; the others waited 400 ms for it.";
  const late = { ...world([1, 1, 1]), straggler };
  assert.equal(ofWorld(late), "Rank 1 was last in 1 of 2 timed calls; the others waited 400 ms for it");
  assert.equal(ofTopology(late, findings(late)).text, "3 B/s on all 3 links", "the dashboard says it in a line of its own");
  const slow = { ...late, links: late.links?.map((view, i) => ({ ...view, nominal: i === 1 ? 1e9 : 40e9 })) };
  assert.equal(ofWorld(slow), "Link 1 → 2 is slow");
  const dead = { ...slow, ranks: slow.ranks.map((rank) => ({ ...rank, state: /** @type {import("../src/types.js").RankView["state"]} */ (rank.rank ? "running" : "dead") })) };
  assert.equal(ofWorld(dead), "Rank 0 is dead");
  assert.equal(ofWorld(world([1, 1])), "", "then its heading");
});
