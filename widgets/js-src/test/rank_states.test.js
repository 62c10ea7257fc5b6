import assert from "node:assert/strict";
import { test } from "node:test";
import { History } from "../src/history.js";
import { LETTERS, LOOKS, fieldOf, gridOf, runsOf } from "../src/rank_states.js";

/**
 * @param {number} at
 * @param {import("../src/types.js").RankView["state"][]} states
 * @param {number} [held]
 * @returns {import("../src/types.js").Snapshot}
 */
const frame = (at, states, held) => ({
  name: "m", backend: "ring", state: "whole", generation: 1, at, held, links: [],
  ranks: states.map((state, rank) => ({ rank, host: "a", state, since: state === "waiting" ? 9 : 1 })),
});

test("the last state of each second is there for each rank, and holds for as long as Python says", () => {
  const history = new History();
  history.add(frame(100.1, ["idle", "running"]));
  history.add(frame(100.9, ["running", "waiting"]));
  history.add(frame(101.2, ["running", "dead"]));
  history.add(frame(107.5, ["idle", "dead"], 106.2));
  assert.deepEqual(gridOf(history, 10).rows, ["  rrrrrrri", "  wddddddd"]);
  assert.deepEqual(gridOf(history, 10).at, [98, 99, 100, 101, 102, 103, 104, 105, 106, 107]);
  assert.deepEqual(gridOf(new History(), 10), { at: [], rows: [] });
});

test("nothing is drawn where nothing was heard, nor for ranks that were not there", () => {
  const history = new History();
  history.add(frame(100, ["idle"]));
  history.add(frame(120, ["idle", "starting"]));
  assert.deepEqual(gridOf(history, 22).rows, [" i" + " ".repeat(19) + "i", " ".repeat(21) + "s"]);
});

test("a page that is opened late has the states that the others have", () => {
  const [early, late] = [new History(), new History()];
  for (const at of [100, 101, 102]) early.add(frame(at, ["running", at > 100 ? "waiting" : "idle"]));
  const rates = { wire: [null, null, null], peak: [null, null, null], ranks: [], link_names: [], links: [] };
  late.seed({ at: [100, 101, 102], ...rates, states: ["ri", "rw", "rw"] });
  assert.deepEqual(gridOf(late, 5), gridOf(early, 5));
});

test("a state that goes on is one piece", () => {
  const runs = runsOf("  rrwr ").map(({ start, length, letter }) => [start, length, letter]);
  assert.deepEqual(runs, [[2, 2, "r"], [4, 1, "w"], [5, 1, "r"]]);
});

test("each state has a letter and a look of its own", () => {
  const letters = Object.values(LETTERS);
  assert.equal(new Set(letters).size, letters.length);
  const looks = letters.filter((letter) => letter !== " ").map((letter) => LOOKS[letter].join());
  assert.equal(new Set(looks).size, letters.length - 1);
});

test("four ranks fill the chart, and 256 are scrolled", () => {
  assert.deepEqual(fieldOf(4, 600, 104), { wide: 4, high: 20, seconds: 150 });
  assert.deepEqual(fieldOf(64, 600, 200), { wide: 4, high: 3, seconds: 150 });
  assert.deepEqual(fieldOf(256, 600, 104), { wide: 4, high: 2, seconds: 150 });
});
