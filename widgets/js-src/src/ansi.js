// Text with ANSI colours as pieces with class names; every other escape is left out.

const ESCAPE = /\u001b\[([0-9;]*)([A-Za-z])|\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)|\u001b[@-Z\\-_]/g;
const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

/**
 * @param {string} text
 * @returns {{text: string, classes: string}[]}
 */
export function pieces(text) {
  if (!text.includes("\u001b")) return [{ text, classes: "" }];
  /** @type {{text: string, classes: string}[]} */
  const found = [];
  const style = { colour: "", bold: false, underline: false };
  let from = 0;
  const push = (/** @type {number} */ to) => {
    if (to <= from) return;
    const classes = [style.colour && `arw-${style.colour}`, style.bold && "arw-bold", style.underline && "arw-under"];
    found.push({ text: text.slice(from, to), classes: classes.filter(Boolean).join(" ") });
  };
  for (const match of text.matchAll(ESCAPE)) {
    push(match.index);
    from = match.index + match[0].length;
    if (match[2] === "m") apply(match[1].split(";").map(Number), style);
  }
  push(text.length);
  return found;
}

/** @param {string} text */
export function plain(text) {
  return text.includes("\u001b") ? text.replace(ESCAPE, "") : text;
}

/**
 * @param {number[]} codes
 * @param {{colour: string, bold: boolean, underline: boolean}} style
 */
function apply(codes, style) {
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i];
    if (code === 0) Object.assign(style, { colour: "", bold: false, underline: false });
    else if (code === 1) style.bold = true;
    else if (code === 22) style.bold = false;
    else if (code === 4) style.underline = true;
    else if (code === 24) style.underline = false;
    else if (code >= 30 && code <= 37) style.colour = NAMES[code - 30];
    else if (code >= 90 && code <= 97) style.colour = NAMES[code - 90];
    else if (code === 39) style.colour = "";
    else if (code === 38 || code === 48) {
      // 256 colours: the first 16 are the named ones, of the rest none is as readable on both themes.
      if (codes[i + 1] === 5 && code === 38) style.colour = codes[i + 2] < 16 ? NAMES[codes[i + 2] % 8] : style.colour;
      i += codes[i + 1] === 5 ? 2 : 4;
    }
  }
}
