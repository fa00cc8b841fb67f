// Which records of a batch a broker returned, because no topic took them: ranges as `Placement.returned` has them.

/** Whether the record at `index` of its batch was returned. */
export function isReturned(ranges: readonly number[], index: number): boolean {
  let [low, high] = [0, ranges.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (ranges[middle]! <= index) low = middle + 1;
    else high = middle;
  }
  // Behind an odd number of bounds one is inside a range.
  return low % 2 === 1;
}

/** The indexes of all that were returned of a batch of `count` records, whatever a broker says beyond it. */
export function indexesReturned(ranges: readonly number[], count: number): number[] {
  if (ranges.length === 0) return [];
  return Array.from({ length: count }, (_, index) => index).filter((index) => isReturned(ranges, index));
}
