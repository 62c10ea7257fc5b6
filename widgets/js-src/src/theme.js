// Light or dark, as what the widget stands on is: JupyterLab, Notebook and VS Code each say so in their own way, and all of
// them paint a background.

/**
 * @param {HTMLElement} root whose `data-theme` is kept right
 * @param {() => void} changed
 * @returns {() => void} stops it
 */
export function followTheme(root, changed) {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const look = () => {
    const theme = isDark(root, query.matches) ? "dark" : "light";
    if (root.dataset.theme === theme) return;
    root.dataset.theme = theme;
    changed();
  };
  const observer = new MutationObserver(() => requestAnimationFrame(look));
  for (const node of [document.body, document.documentElement])
    observer.observe(node, { attributes: true, attributeFilter: ["class", "style", "data-jp-theme-light", "data-jp-theme-name"] });
  query.addEventListener("change", look);
  // JupyterLab loads the new theme's colours after it has named it.
  const timer = setInterval(look, 1000);
  look();
  return () => {
    observer.disconnect();
    query.removeEventListener("change", look);
    clearInterval(timer);
  };
}

/**
 * @param {HTMLElement} root
 * @param {boolean} preferred
 */
function isDark(root, preferred) {
  const colour = getComputedStyle(root).backgroundColor;
  const parts = colour.match(/[\d.]+/g)?.map(Number) ?? [];
  if (parts.length < 3 || parts[3] === 0) return preferred;
  const [red, green, blue] = parts;
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 128;
}
