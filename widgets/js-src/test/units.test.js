import assert from "node:assert/strict";
import { test } from "node:test";
import * as units from "../src/units.js";

test("what is not known is said to be unknown, and zero is zero", () => {
  for (const say of [units.bytes, units.rate, units.bits, units.percent, units.seconds]) {
    assert.equal(say(undefined), "unknown");
    assert.equal(say(null), "unknown");
  }
  assert.equal(units.rate(0), "0 B/s");
  assert.equal(units.percent(0), "0 %");
});

test("rates adapt their unit, in powers of ten", () => {
  assert.equal(units.rate(1.24e9), "1.24 GB/s");
  assert.equal(units.rate(96_340_000), "96.3 MB/s");
  assert.equal(units.rate(5_100), "5.10 kB/s");
  assert.equal(units.rate(999_600), "1.00 MB/s");
  assert.equal(units.bits(40e9), "40 Gbit/s");
  assert.equal(units.bits(2.5e9), "2.5 Gbit/s");
});

test("times are short", () => {
  assert.equal(units.seconds(0.00004), "40 µs");
  assert.equal(units.seconds(0.0421), "42.1 ms");
  assert.equal(units.seconds(6.32), "6.3 s");
  assert.equal(units.seconds(125), "2 min 5 s");
  assert.equal(units.lasted(0.0014), "<1 s");
  assert.equal(units.lasted(6.97), "6 s");
  assert.equal(units.lasted(99.4), "99 s");
  assert.equal(units.lasted(99.5), "1 min 39 s");
  assert.equal(units.lasted(undefined), "unknown");
});

test("ranks are listed as a person writes them", () => {
  assert.equal(units.rankLabel([2]), "rank 2");
  assert.equal(units.rankLabel([3, 0, 1, 2, 7]), "ranks 0-3, 7");
});
