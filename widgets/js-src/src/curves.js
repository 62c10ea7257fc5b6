// What ranks logged, as curves over steps: one for each name and rank. Pure, no page.

/** @typedef {[number, string, number, number, number | string, number]} Row rank, name, cell, step, value, time */
/** @typedef {number | null} Value */
/** @typedef {{steps: number[], values: Value[], last: number | string, cell: number,
 *   recent: [number, number][]}} Curve `recent` are the last steps with the time of each, in Unix seconds */

export const MOST_POINTS = 2000; // of a curve; then every second step of all ranks goes
export const MOST_CURVES = 256;
const MOST_RECENT = 20; // steps from which the pace is computed

export class Curves {
  constructor() {
    /** @type {Map<string, Map<number, Curve>>} by name, by rank */
    this.byName = new Map();
    this.count = 0;
    this.version = 0;
  }

  /** @param {Row[]} rows */
  add(rows) {
    for (const [rank, name, cell, step, value, time] of rows) {
      const curve = this.#curve(name, rank);
      if (!curve) continue;
      // A step that goes back: a loop starts again. In another cell, the name's curves up to the earlier cell are of an earlier run.
      if (step < curve.steps[curve.steps.length - 1]) {
        curve.steps.length = curve.values.length = curve.recent.length = 0;
        if (cell !== curve.cell) this.#dropOlder(name, rank, curve.cell);
      }
      if (cell !== curve.cell) curve.recent.length = 0; // the pause between two cells is no step
      curve.cell = cell;
      curve.steps.push(step);
      curve.values.push(typeof value === "number" ? value : null);
      curve.last = value;
      if (curve.recent.at(-1)?.[1] === time) curve.recent.pop(); // a page that is opened late gets all points with one time
      curve.recent.push([step, time]);
      if (curve.recent.length > MOST_RECENT) curve.recent.shift();
      if (curve.steps.length > MOST_POINTS) this.#thin(name, curve);
    }
    if (rows.length) this.version++;
  }

  /**
   * @param {string} name
   * @param {number} rank
   * @returns {Curve | null} null where there are too many already
   */
  #curve(name, rank) {
    let ranks = this.byName.get(name);
    let curve = ranks?.get(rank);
    if (curve) return curve;
    if (this.count >= MOST_CURVES) return null;
    if (!ranks) this.byName.set(name, (ranks = new Map()));
    curve = { steps: [], values: [], last: 0, cell: 0, recent: [] };
    ranks.set(rank, curve);
    this.count++;
    return curve;
  }

  /**
   * Drop the curves of the other ranks that have no point of a cell after `before`.
   * @param {string} name
   * @param {number} rank
   * @param {number} before the cell of the rank's earlier run
   */
  #dropOlder(name, rank, before) {
    const ranks = /** @type {Map<number, Curve>} */ (this.byName.get(name));
    for (const [other, { cell }] of ranks) {
      if (other !== rank && cell <= before && ranks.delete(other)) this.count--;
    }
  }

  /**
   * Leave out every second step of a curve that is too long, on all ranks, so that a mean is one over all of them.
   * @param {string} name
   * @param {Curve} long
   */
  #thin(name, long) {
    if (new Set(long.steps).size < long.steps.length) { // several points of one step: an epoch, say
      long.values = long.values.filter((_, i) => i % 2 === 0);
      long.steps = long.steps.filter((_, i) => i % 2 === 0);
      return;
    }
    const out = new Set(long.steps.filter((_, i) => i % 2 === 1));
    for (const curve of this.byName.get(name)?.values() ?? []) {
      if (curve.steps.length <= MOST_POINTS / 2) continue; // it has other steps
      curve.values = curve.values.filter((_, i) => !out.has(curve.steps[i]));
      curve.steps = curve.steps.filter((step) => !out.has(step));
    }
  }

  get names() {
    return [...this.byName.keys()];
  }

  /** @param {string} name @returns {number[]} the ranks that logged it, in order */
  ranks(name) {
    return [...(this.byName.get(name)?.keys() ?? [])].sort((a, b) => a - b);
  }

  /** @param {string} name @param {number} rank */
  last(name, rank) {
    return this.byName.get(name)?.get(rank)?.last;
  }

  /**
   * @param {number | undefined} cell
   * @returns {number | null} steps a second lately, by the first name on its first rank; null if unknown, or if that was
   *   logged in another cell
   */
  pace(cell) {
    const [name] = this.names;
    const curve = name === undefined ? undefined : this.byName.get(name)?.get(this.ranks(name)[0]);
    if (curve === undefined || curve.cell !== cell || curve.recent.length < 2) return null;
    const { recent } = curve;
    const [[step, time], [last, now]] = [recent[0], recent[recent.length - 1]];
    return last > step && now > time ? (last - step) / (now - time) : null;
  }

  /**
   * @param {string} name
   * @param {"rank" | "range"} by
   * @returns {(number[] | (Value | undefined)[])[]} steps, then a column for each rank, or their mean, most and least;
   *   undefined where a rank has no point at a step (the line goes on), null where it has no number (the line breaks)
   */
  columns(name, by) {
    const curves = this.ranks(name).map((rank) => /** @type {Curve} */ (this.byName.get(name)?.get(rank)));
    const steps = [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
    const at = new Map(steps.map((step, i) => [step, i]));
    const columns = curves.map((curve) => {
      /** @type {(Value | undefined)[]} */
      const column = new Array(steps.length).fill(undefined);
      curve.steps.forEach((step, i) => (column[/** @type {number} */ (at.get(step))] = curve.values[i]));
      return column;
    });
    if (by === "rank") return [steps, ...columns];
    const mean = (/** @type {number[]} */ values) => values.reduce((sum, value) => sum + value, 0) / values.length;
    return [steps, ...[mean, most, least].map((of) => over(columns, steps.length, of))];
  }
}

const most = (/** @type {number[]} */ values) => Math.max(...values);
const least = (/** @type {number[]} */ values) => Math.min(...values);

/**
 * @param {(Value | undefined)[][]} columns
 * @param {number} length
 * @param {(values: number[]) => number} of what all ranks have at a step
 * @returns {(Value | undefined)[]}
 */
function over(columns, length, of) {
  return Array.from({ length }, (_, i) => {
    const told = columns.map((column) => column[i]).filter((value) => value !== undefined);
    if (!told.length) return undefined;
    if (told.includes(null)) return null;
    return of(/** @type {number[]} */ (told));
  });
}
