import assert from "node:assert/strict";
import { test } from "node:test";
import { Store } from "../src/store.js";
import { LATE } from "../src/words.js";

/** @param {object} [kernel] the connection to the kernel that the page has */
function clicked(kernel) {
  /** @type {any[]} */
  const sent = [];
  const fields = { key: "k", frame: null };
  const model = { get: (/** @type {"key" | "frame"} */ name) => fields[name], on: () => {}, send: (/** @type {any} */ content) => sent.push(content), widget_manager: { kernel } };
  Object.assign(globalThis, { window: new EventTarget() });
  const store = new Store(/** @type {any} */ (model));
  store.act("heal", null);
  store.answered = true;
  return { said: store.said, sent: sent.map((content) => content.ask) };
}

test("a page without a control channel says when a click takes effect", () => {
  assert.deepEqual(clicked({}), { said: `heal requested … ${LATE}`, sent: ["all", "heal"] });
});

test("a page with a control channel sends the click there and says nothing about it", () => {
  /** @type {any[]} */
  const controlled = [];
  const kernel = { sendControlMessage: (/** @type {any} */ message) => controlled.push(message.content.ask) };
  assert.deepEqual(clicked(kernel), { said: "heal requested …", sent: [] });
  assert.deepEqual(controlled, ["all", "heal"]);
});
