// Names of hosts where there is no room for all of them. Pure, no page.

const LEAST = 3; // characters of a name: its first, "…" and its last

/**
 * Names with at most `most` characters, which differ where the names do: without the domain that all have in common,
 * cut in the middle, or without the beginning and the end that all have in common.
 * @param {string[]} names
 * @param {number} most at least `LEAST` are taken
 * @returns {string[]} in the same order
 */
export function shortNames(names, most) {
  const room = Math.max(LEAST, Math.floor(most));
  const fits = (/** @type {string[]} */ those) => those.every((name) => name.length <= room);
  if (fits(names)) return [...names];
  const bare = names.map((name) => name.slice(0, name.length - domain(names).length));
  if (fits(bare)) return bare;
  const begin = common(bare);
  const rest = bare.map((name) => (begin ? `…${name.slice(begin)}` : name));
  const end = common(rest.map(reversed));
  const forms = [bare, rest, rest.map((name) => (end ? `${name.slice(0, name.length - end)}…` : name))];
  const cut = forms.map((form) => form.map((name) => cutInMiddle(name, room)));
  const different = Math.max(...cut.map((form) => new Set(form).size));
  return cut.find((form) => new Set(form).size === different) ?? bare;
}

/** @param {string} name @param {number} room characters: as many for its end, where numbers stand, as for the rest */
function cutInMiddle(name, room) {
  if (name.length <= room) return name;
  const end = Math.ceil((room - 1) / 2);
  return `${name.slice(0, room - 1 - end)}…${name.slice(name.length - end)}`;
}

/** @param {string[]} names @returns {string} the longest end of all, from a dot on: `.local`; empty if there is none */
function domain(names) {
  const [first] = names;
  if (names.length < 2) return "";
  for (let i = first.indexOf(".", 1); i > 0; i = first.indexOf(".", i + 1)) {
    const end = first.slice(i);
    if (names.every((name) => name.length > end.length && name.endsWith(end))) return end;
  }
  return "";
}

/** @param {string} text */
const reversed = (text) => [...text].reverse().join("");

/** @param {string[]} names @returns {number} characters with which all begin, up to a number that differs */
function common(names) {
  const [first] = names;
  let n = 0;
  while (n < first.length - 1 && names.every((name) => name.length > n + 1 && name[n] === first[n])) n++;
  while (n > 0 && /\d/.test(first[n - 1])) n--;
  return n;
}
