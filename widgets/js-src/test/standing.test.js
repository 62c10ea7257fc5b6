import assert from "node:assert/strict";
import { test } from "node:test";
import { sameStanding } from "../src/snapshot.js";

/** @typedef {import("../src/types.js").Snapshot} Snapshot */

/** @param {Partial<import("../src/types.js").RankView>} rank @param {Partial<Snapshot>} [more] @returns {Snapshot} */
const frame = (rank, more) => ({
  name: "m", backend: "ring", state: "whole", generation: 1,
  ranks: [{ rank: 0, host: "a", state: "running", line: 3, ...rank }, { rank: 1, host: "a", state: "running" }],
  links: [{ link: { source: 0, target: 1, kind: "loopback", interface: "lo0" }, rate: 5, sent: 7 }], ...more,
});

test("rates, memory, lines and collectives that go on are figures", () => {
  const busy = frame({ line: 4, rss: 9, cpu: 0.5, effective: 3, since: 0.1 }, { at: 9 });
  assert.ok(sameStanding(frame({}), busy));
  assert.ok(sameStanding(frame({}), frame({ state: "waiting", since: 0.4, collective: /** @type {any} */ ({ number: 3 }) })));
});

test("who is there, in which state, and what is wrong is more than a figure", () => {
  const others = [
    frame({ state: "waiting", since: 2.1 }), frame({ state: "dead", cause: "killed" }), frame({ host: "b" }),
    frame({ compiler: "g++" }), frame({}, { state: "broken" }), frame({}, { notes: ["heal"] }), frame({}, { straggler: "rank 1" }),
    frame({}, { links: [] }),
  ];
  for (const other of others) assert.ok(!sameStanding(frame({}), other), JSON.stringify(other));
});
