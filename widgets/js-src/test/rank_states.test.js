import assert from "node:assert/strict";
import { test } from "node:test";
import { History } from "../src/history.js";
import { LETTERS, LOOKS, fieldOf, gridOf, lettersOf, runsOf } from "../src/rank_states.js";

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
  assert.deepEqual(gridOf(history, 10).rows, ["rrrrrrri", "wddddddd"], "from the first second that is known");
  assert.deepEqual(gridOf(history, 10).at, [100, 101, 102, 103, 104, 105, 106, 107]);
  assert.deepEqual(gridOf(history, 3).at, [105, 106, 107]);
  assert.deepEqual(gridOf(new History(), 10), { at: [], rows: [] });
});

test("nothing is drawn where nothing was heard, nor for ranks that were not there", () => {
  const history = new History();
  history.add(frame(100, ["idle"]));
  history.add(frame(120, ["idle", "starting"]));
  assert.deepEqual(gridOf(history, 22).rows, ["i" + " ".repeat(19) + "i", " ".repeat(20) + "s"]);
});

test("nothing is known of ranks that do not report, and the state in words is Python's", () => {
  /** @type {[string, Partial<import("../src/types.js").RankView>][]} */
  const cases = [
    ["r", { state: "running" }], [" ", { state: "running", away: 0 }], [" ", { state: "running", silent: 4 }],
    ["e", { state: "waiting", since: 0.5 }], ["w", { state: "waiting", since: 5 }], ["w", { state: "waiting" }],
    ["w", { state: "waiting", since: 0.5, in_task: true }], [" ", { state: "planned" }],
  ];
  const ranks = cases.map(([, rank], i) => ({ rank: i, host: "a", ...rank }));
  assert.equal(lettersOf({ ...frame(100, []), ranks }), cases.map(([letter]) => letter).join(""));
});

test("the end of a world adds no second, and holds what was there before", () => {
  const history = new History();
  history.add(frame(100, ["running", "idle"]));
  history.add({ ...frame(105, []), state: "down", held: 103.5 });
  assert.deepEqual([history.at, history.states], [[100, 101, 102, 103], ["ri", "ri", "ri", "ri"]]);
  assert.equal(gridOf(history, 10).rows.length, 2);
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
  const letters = Object.values(LETTERS).filter((letter) => letter !== " "); // which stands for all that are not known
  assert.equal(new Set(letters).size, letters.length);
  assert.equal(new Set(letters.map((letter) => LOOKS[letter].join())).size, letters.length);
});

test("where rows are too low for patterns, ranks that start and ranks that idle differ", () => {
  assert.notEqual(LOOKS[LETTERS.starting][0], LOOKS[LETTERS.idle][0]);
});

test("four ranks fill the chart, and 256 are scrolled", () => {
  assert.deepEqual(fieldOf(4, 600, 104), { wide: 4, high: 20, seconds: 150 });
  assert.deepEqual(fieldOf(64, 600, 200), { wide: 4, high: 3, seconds: 150 });
  assert.deepEqual(fieldOf(256, 600, 104), { wide: 4, high: 2, seconds: 150 });
});
