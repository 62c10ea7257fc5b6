// The dashboard in a window of its own, which can stand on another screen. It runs this script once more, as another page
// would: its timers go on while the notebook's page is hidden.

import { h } from "./dom.js";

/** @typedef {import("./types.js").Model} Model */

const SIZE = "popup,width=980,height=860"; // pixels
const LOOKS = ["--jp-layout-color0", "--jp-ui-font-family", "--jp-code-font-family", "--vscode-editor-background", "--vscode-font-family", "--vscode-editor-font-family"];
const PAGE = `html { background: var(--jp-layout-color0, var(--vscode-editor-background, Canvas)) }
body { margin: 0 }
.arw-root { border: 0 !important; border-radius: 0 !important }`;

/**
 * @param {Model} model
 * @param {HTMLElement} root of the view from which it is opened
 * @param {string} title
 * @returns {(() => void) | null} makes its colours and type those of the page once more; null if the browser opened no window
 */
export function openWindow(model, root, title) {
  const opened = /** @type {any} */ (window.open("", "", SIZE));
  if (!opened) return null;
  const there = opened.document;
  const dress = () => {
    const look = getComputedStyle(root);
    for (const name of LOOKS) there.documentElement.style.setProperty(name, look.getPropertyValue(name));
  };
  there.title = title;
  there.documentElement.lang = document.documentElement.lang || "en";
  there.head.append(h("style", {}, `${model.get("_css")}\n${PAGE}`));
  dress();
  let end = () => {};
  opened.allranks = (/** @type {any} */ widget) => {
    end = widget.render({ model, el: there.body, apart: true });
  };
  const address = opened.URL.createObjectURL(new Blob([model.get("_esm")], { type: "text/javascript" }));
  const script = there.createElement("script"); // a script of another document would not run
  script.type = "module";
  script.textContent = `import widget from "${address}";\nallranks(widget);`;
  there.head.append(script);
  const close = () => opened.close();
  window.addEventListener("pagehide", close);
  opened.addEventListener("pagehide", () => {
    window.removeEventListener("pagehide", close);
    end();
    opened.close(); // a reload would leave it empty
  });
  return dress;
}
