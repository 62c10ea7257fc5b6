// What ranks logged, as curves over steps: one for each name and rank. Pure, no page.

/** @typedef {[number, string, number, number, number | string, number]} Row rank, name, cell, step, value, time */
/** @typedef {number | null} Value */
/** @typedef {{steps: number[], values: Value[], last: number | string}} Curve */

export const MOST_POINTS = 2000; // of a curve; then every second of the older ones goes
export const MOST_CURVES = 256;

export class Curves {
  constructor() {
    /** @type {Map<string, Map<number, Curve>>} by name, by rank */
    this.byName = new Map();
    this.count = 0;
    this.version = 0;
  }

  /** @param {Row[]} rows */
  add(rows) {
    for (const [rank, name, , step, value] of rows) {
      const curve = this.#curve(name, rank);
      if (!curve) continue;
      // A step that goes back: a cell was run again.
      if (step < curve.steps[curve.steps.length - 1]) curve.steps.length = curve.values.length = 0;
      curve.steps.push(step);
      curve.values.push(typeof value === "number" ? value : null);
      curve.last = value;
      if (curve.steps.length > MOST_POINTS) {
        curve.steps = curve.steps.filter((_, i) => i % 2 === 0);
        curve.values = curve.values.filter((_, i) => i % 2 === 0);
      }
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
    curve = { steps: [], values: [], last: 0 };
    ranks.set(rank, curve);
    this.count++;
    return curve;
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
   * @param {string} name
   * @param {"rank" | "mean"} by
   * @returns {(number[] | (Value | undefined)[])[]} steps, then a column for each rank or one for their mean; undefined
   *   where a rank has no point at a step (the line goes on), null where it has no number (the line breaks)
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
    return [steps, ...(by === "rank" ? columns : [meanOf(columns, steps.length)])];
  }
}

/**
 * @param {(Value | undefined)[][]} columns
 * @param {number} length
 * @returns {(Value | undefined)[]}
 */
function meanOf(columns, length) {
  return Array.from({ length }, (_, i) => {
    const told = columns.map((column) => column[i]).filter((value) => value !== undefined);
    if (!told.length) return undefined;
    if (told.includes(null)) return null;
    return /** @type {number[]} */ (told).reduce((sum, value) => sum + value, 0) / told.length;
  });
}
