import assert from "node:assert/strict";
import { test } from "node:test";
import { findings, hostsOf } from "../src/snapshot.js";
import { busiest, linksAt, trafficOf } from "../src/traffic.js";

/**
 * @param {number} n @param {(source: number, target: number) => number | undefined} rate
 * @returns {import("../src/types.js").Snapshot}
 */
const mesh = (n, rate) => ({
  name: "m", backend: "jaccl", state: "whole", generation: 1, at: 0,
  ranks: Array.from({ length: n }, (_, rank) => ({ rank, host: rank < n / 2 ? "a" : "b", state: "running" })),
  links: Array.from({ length: n * n }, (_, i) => ({ link: { source: Math.floor(i / n), target: i % n, kind: "rdma" }, rate: rate(Math.floor(i / n), i % n), sent: 1 }))
    .filter(({ link }) => link.source !== link.target),
});

test("a row for each rank that sends, a column for each that receives", () => {
  const now = mesh(4, (source, target) => (source === 1 && target === 3 ? 5e9 : source === 2 ? 0 : 1e9));
  const traffic = trafficOf(findings(now), hostsOf(now), false);
  assert.deepEqual(traffic.groups.map(({ name, host }) => `${name}${host}`), ["00", "10", "21", "31"]);
  assert.equal(traffic.rates[1 * 4 + 3], 5e9);
  assert.deepEqual(traffic.states.slice(8, 12), ["idle", "idle", "none", "idle"]);
  assert.equal(traffic.top, 5e9);
  assert.deepEqual(busiest(traffic, 2).length, 2);
  assert.equal(busiest(traffic, 99)[0], 7);
  assert.deepEqual(linksAt(traffic, findings(now), 7).map(({ view }) => view.rate), [5e9]);
  assert.equal(busiest(traffic, 99).length, 9, "idle links are not busy");
});

test("hosts stand for their ranks where there are too many of these", () => {
  const now = mesh(4, (source, target) => (source === 0 && target === 2 ? undefined : 1e9));
  const traffic = trafficOf(findings(now), hostsOf(now), true);
  assert.deepEqual(traffic.groups.map(({ name }) => name), ["a", "b"]);
  assert.deepEqual([...traffic.rates], [2e9, 3e9, 4e9, 2e9]);
  assert.deepEqual(traffic.states, ["busy", "busy", "busy", "busy"]);
});
