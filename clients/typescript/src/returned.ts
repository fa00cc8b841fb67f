// Which records of a batch a broker returned or refused: ranges of indexes as `Placement.returned` has them.

/** Whether the record at `index` of its batch is in one of the ranges. */
export function isAmong(ranges: readonly number[], index: number): boolean {
  let [low, high] = [0, ranges.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (ranges[middle]! <= index) low = middle + 1;
    else high = middle;
  }
  // Behind an odd number of bounds one is inside a range.
  return low % 2 === 1;
}

/** The indexes in the ranges below `count`, whatever a broker says beyond it. */
export function indexesAmong(ranges: readonly number[], count: number): number[] {
  if (ranges.length === 0) return [];
  return Array.from({ length: count }, (_, index) => index).filter((index) => isAmong(ranges, index));
}
