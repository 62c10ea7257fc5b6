import assert from "node:assert/strict";
import { test } from "node:test";
import { shortNames } from "../src/host_names.js";

test("names of hosts that are cut keep what tells them apart", () => {
  const studios = ["studio-1", "studio-2", "studio-10"];
  assert.deepEqual(shortNames(studios, 9), studios);
  const whole = studios.map((name) => `${name}.lab.example.org`);
  assert.deepEqual(shortNames(whole, 9), studios, "the domain that all have is left out");
  assert.deepEqual(shortNames(studios, 7), ["stu…o-1", "stu…o-2", "stu…-10"]);
  assert.deepEqual(shortNames(["node-001-ib0", "node-002-ib0"], 6), ["…001…", "…002…"]);
  const long = ["a-very-long-name-of-3-hosts", "a-very-long-name-of-4-hosts"];
  assert.deepEqual(shortNames(long, 8), ["…3-hosts", "…4-hosts"]);
  assert.deepEqual(shortNames(["mac1.local", "mac2.office"], 6), ["ma…cal", "ma…ice"]);
  assert.deepEqual(shortNames(["localhost.localdomain"], 9), ["loca…main"]);
  assert.deepEqual(shortNames(["studio-1", "studio-2"], 1), ["s…1", "s…2"]);
  assert.deepEqual(shortNames([], 5), []);
});

test("a hundred hosts of a rack stay a hundred names", () => {
  const names = Array.from({ length: 100 }, (_, i) => `rack-7-node-${String(i).padStart(3, "0")}.cluster.local`);
  for (const most of [6, 8, 12, 15]) {
    const short = shortNames(names, most);
    assert.equal(new Set(short).size, 100, `${most} characters`);
    assert.ok(short.every((name) => name.length <= most));
  }
});
