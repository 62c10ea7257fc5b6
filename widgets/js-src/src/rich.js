// Figures and HTML of the ranks. Nothing of it can run a script on the page.

import { h } from "./dom.js";

/** @typedef {import("./output.js").Segment} Segment */

const IMAGES = ["image/svg+xml", "image/png", "image/jpeg", "image/gif", "image/webp"];
const TALLEST = 480;

/**
 * @param {Segment} segment
 * @param {() => void} resized called when its height is known
 * @returns {HTMLElement}
 */
export function showRich(segment, resized) {
  const data = segment.data ?? {};
  const node = h("span.rich");
  const measured = (/** @type {number} */ height) => {
    const now = Math.min(TALLEST, Math.ceil(height)) + 8;
    if (Math.abs(now - segment.height) < 2) return;
    segment.height = now;
    node.style.height = `${now}px`;
    resized();
  };
  node.style.height = `${segment.height}px`;
  const mime = IMAGES.find((one) => data[one]);
  if (mime) {
    const bytes = mime === "image/svg+xml" ? `;utf8,${encodeURIComponent(data[mime])}` : `;base64,${data[mime].replace(/\s/g, "")}`;
    // As an image, SVG runs no script and loads nothing.
    const image = h("img", { alt: data["text/plain"] ?? "figure", src: `data:${mime}${bytes}` });
    image.addEventListener("load", () => measured(image.getBoundingClientRect().height));
    node.append(image);
  } else {
    // Without allow-scripts nothing in it runs; allow-same-origin lets us measure it.
    const frame = h("iframe", { sandbox: "allow-same-origin", title: "HTML of a rank", tabindex: 0 });
    frame.addEventListener("load", () => measured(frame.contentDocument?.documentElement.scrollHeight ?? 0));
    frame.addEventListener("load", () => (frame.style.height = `${segment.height - 8}px`));
    queueMicrotask(() => (frame.srcdoc = page(data["text/html"] ?? "", node)));
    node.append(frame);
  }
  return node;
}

/**
 * @param {string} html
 * @param {Element} near whose colours it takes
 */
function page(html, near) {
  const { colorScheme } = getComputedStyle(near);
  return `<!doctype html><meta charset="utf-8"><style>:root{color-scheme:${colorScheme || "light dark"}}
html,body{margin:0;background:transparent;font:13px/1.45 system-ui,sans-serif;height:auto}
table{border-collapse:collapse}td,th{padding:2px 8px;text-align:right;border:0}thead{border-bottom:1px solid}</style>${html}`;
}
