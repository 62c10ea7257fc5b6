// Progress bars as tqdm and its like write them: ` 45%|####5     | 9/20 [00:01<00:01, 8.1it/s]`.

const BAR = /^(.*?)(\d{1,3})%\|([^|]*)\|(.*)$/;

/**
 * @param {string} text one line
 * @returns {{label: string, share: number, rest: string} | null} null if it is no bar
 */
export function progress(text) {
  const found = BAR.exec(text);
  if (!found || Number(found[2]) > 100) return null;
  return { label: found[1].replace(/:?\s*$/, ""), share: Number(found[2]) / 100, rest: found[4].trim() };
}
