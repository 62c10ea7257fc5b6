import assert from "node:assert/strict";
import { test } from "node:test";
import { Chosen, Columns, counted, differing, nextDifference, Output } from "../src/output.js";

const RANKS = [0, 1, 2, 3];

/** @param {any[]} items @returns {import("../src/output.js").Cell} */
function cell(...items) {
  const output = new Output();
  output.take([{ cell: 1, kind: "begin", ranks: RANKS, code: "" }, ...items.map((item) => ({ cell: 1, ...item }))]);
  return /** @type {any} */ (output.last);
}

/** @param {string} text @param {number[]} ranks */
const text = (text, ranks = RANKS) => ({ kind: "text", stream: "stdout", ranks, text });

test("lines are counted as folded and as said", () => {
  const one = cell(text("a\nb\n"), text("c\n", [2]));
  assert.deepEqual([one.lines, one.said, one.rows], [3, 9, 3]);
  assert.deepEqual(one.segments.map((segment) => segment.differs), [false, false, true]);
});

test("the lines that ranks printed are counted, and the ranks that printed them", () => {
  const note = { kind: "text", stream: "note", ranks: RANKS, text: "Re-formed the world.\n" };
  const clear = { kind: "clear", ranks: [1], wait: false };
  assert.equal(counted(cell(text("a\nb\nc\n"))), "3 lines · folded from 12 lines that 4 ranks printed");
  assert.equal(counted(cell(text("a\nb\n", [0, 1, 3]), text("c\n", [3]))), "3 lines · folded from 7 lines that 3 ranks printed");
  assert.equal(counted(cell(text("a\n"), text("b\nc\n", [2]), note)), "3 lines · folded from 6 lines that 4 ranks printed");
  assert.equal(counted(cell(text("a\n", [1]), note)), "1 line");
  assert.equal(counted(cell(text("a\n", [1]), text("b\n", [2]))), "2 lines");
  assert.equal(counted(cell(text("a\n", [0, 1]), text("b\n", [1, 2]), clear)), "2 lines");
  assert.equal(counted(cell(text("a\n", [0, 1, 2]), text("b\n", [1]), clear)), "1 line · folded from 2 lines that 2 ranks printed");
  assert.equal(counted(cell(text("lo", [0, 1]), text("ss\n", [0, 1]))), "1 line · folded from 2 lines that 2 ranks printed");
  const lost = { kind: "dropped", items: 1, lines: 1000, said: 2000 };
  assert.equal(counted(cell(lost, text("a\n", [0, 1]))), "1\u202f001 lines · folded from 2\u202f002 lines");
});

test("a line that came in pieces is one line, and a carriage return starts it anew", () => {
  const one = cell(text("lo"), text("ss 1\rloss 2"), text("\nnext\n"));
  assert.deepEqual(one.texts, ["loss 2", "next"]);
  assert.equal(one.lines, 2);
});

test("clear takes away what those ranks said, at once or with the next output", () => {
  const one = cell(text("all\n"), text("own\n", [1]), { kind: "clear", ranks: [1], wait: false });
  assert.deepEqual(one.texts, ["all"]);
  assert.deepEqual(one.segments[0].ranks, [0, 2, 3]);
  const later = cell(text("old\n"), { kind: "clear", ranks: RANKS, wait: true });
  assert.deepEqual(later.texts, ["old"]);
  const gone = cell(text("old\n"), { kind: "clear", ranks: RANKS, wait: true }, text("new\n"));
  assert.deepEqual(gone.texts, ["new"]);
});

test("a display is updated in its place", () => {
  const data = { "image/png": "AAAA" };
  const one = cell(
    { kind: "display", ranks: RANKS, data, display_id: "d" },
    { kind: "update", ranks: RANKS, data: { "image/png": "BBBB" }, display_id: "d" },
  );
  assert.equal(one.segments[0].data?.["image/png"], "BBBB");
});

test("columns put on one line what ranks said alike, and beside each other what they said apart", () => {
  const one = cell(text("a\n"), text("x\n", [0]), text("y\n", [1]), text("b\n"));
  const columns = new Columns(one);
  columns.grow();
  assert.deepEqual(columns.of.get(0), [1, 2, 4]);
  assert.deepEqual(columns.of.get(1), [1, 3, 4]);
  assert.equal(columns.of.get(2)?.[2], 4);
  assert.equal(columns.length, 3);
});

test("one rank's rows are found by position and back", () => {
  const chosen = new Chosen(cell(text("a\n"), text("x\n", [0]), text("b\n")), 1);
  chosen.grow();
  assert.deepEqual(chosen.rows, [0, 2]);
  assert.equal(chosen.position(2), 1);
});

test("the next difference goes round, one stop for each stretch", () => {
  const one = cell(text("a\n"), text("x\n", [0]), text("y\n", [1]), text("b\n"), text("z\n", [2]));
  assert.equal(nextDifference(one, -1), 1);
  assert.equal(nextDifference(one, 1), 4);
  assert.equal(nextDifference(one, 4), 1);
  assert.equal(nextDifference(cell(text("a\n")), -1), -1);
});

test("memory is bounded and the count of lines right", () => {
  const output = new Output();
  output.take([{ cell: 1, kind: "begin", ranks: RANKS }]);
  for (let block = 0; block < 130; block++)
    output.take(RANKS.map((rank) => ({ cell: 1, ...text(`line\n`.repeat(1000), [rank]) })));
  const one = /** @type {any} */ (output.last);
  assert.equal(one.lines, 520_000);
  assert.ok(one.rows <= 500_000);
  assert.equal(one.rows + one.dropped, 520_000);
});

test("an error is found by its row and keeps its colours", () => {
  const one = cell(text("a\n"), { kind: "error", ranks: [2], ename: "ValueError", evalue: "bad", traceback: ["x\ny", "z"] });
  assert.deepEqual(one.errors, [{ row: 1, ranks: [2], ename: "ValueError", evalue: "bad" }]);
  assert.equal(one.rows, 4);
});

test("of lines that differ in a part, only the words that differ are marked", () => {
  const marked = (/** @type {string} */ one, /** @type {string[]} */ ...others) => differing(one, others)?.map(([text, differs]) => (differs ? `[${text}]` : text)).join("");
  assert.equal(marked("step 3 loss 0.4412", "step 3 loss 0.4418", "step 3 loss 0.51"), "step 3 loss [0.4412]");
  assert.equal(marked("shard 0: first id 0", "shard 1: first id 8192"), "shard [0]: first id [0]");
  assert.equal(marked("read 3 files in 2 s", "read all files again in 2 s"), "read [3] [files] in 2 s");
  assert.equal(marked("Traceback", "step 3"), undefined, "all of it differs");
});

test("a line is compared with what other ranks have beside it, also behind many lines of one rank", () => {
  const one = cell(text("a 0\nb 0\n", [0]), text("a 1\nb 1\n", [1]));
  const columns = new Columns(one);
  columns.grow();
  assert.deepEqual([0, 1, 2, 3].map((row) => [...columns.beside(row)]), [["a 1"], ["b 1"], ["a 0"], ["b 0"]]);
});
