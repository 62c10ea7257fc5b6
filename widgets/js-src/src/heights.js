// Where rows are in a long list of which only what is seen is drawn: lines of one height, and some taller figures.

export class Heights {
  /** @param {number} line height of a line in pixels */
  constructor(line) {
    this.line = line;
    /** @type {number[]} */
    this.positions = [];
    /** @type {number[]} what figures up to and with this one add */
    this.added = [];
  }

  /** @param {[number, number][]} figures position and height of each, in order */
  set(figures) {
    this.positions = [];
    this.added = [];
    let added = 0;
    for (const [position, height] of figures) {
      added += height - this.line;
      this.positions.push(position);
      this.added.push(added);
    }
  }

  /** @param {number} position its upper edge */
  top(position) {
    let [low, high] = [0, this.positions.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.positions[middle] < position) low = middle + 1;
      else high = middle;
    }
    return position * this.line + (low ? this.added[low - 1] : 0);
  }

  /**
   * @param {number} y
   * @param {number} length of the list
   */
  at(y, length) {
    let [low, high] = [0, length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.top(middle + 1) <= y) low = middle + 1;
      else high = middle;
    }
    return Math.min(low, Math.max(0, length - 1));
  }
}
