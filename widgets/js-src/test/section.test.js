import assert from "node:assert/strict";
import { test } from "node:test";
import { keep, kept } from "../src/section.js";

test("a fold is remembered for dashboards with the same views, and for no others", () => {
  const [all, two] = [["topology", "throughput", "log", "ranks"], ["topology", "ranks"]];
  const stored = new Map();
  const getItem = (/** @type {string} */ key) => stored.get(key) ?? null;
  const setItem = (/** @type {string} */ key, /** @type {string} */ value) => stored.set(key, value);
  Object.assign(globalThis, { sessionStorage: { getItem, setItem } });
  keep(all, "Ranks", false);
  keep(all, "Topology", true);
  assert.deepEqual([kept(all, "Ranks"), kept(all, "Topology"), kept(two, "Ranks")], [false, true, null]);
});
