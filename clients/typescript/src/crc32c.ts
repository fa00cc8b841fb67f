// CRC-32C (Castagnoli), eight bytes at a time.

const POLYNOMIAL = 0x82f63b78;
const TABLES = makeTables();

function makeTables(): Int32Array[] {
  const first = new Int32Array(256);
  for (let byte = 0; byte < 256; byte++) {
    let crc = byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ POLYNOMIAL : crc >>> 1;
    first[byte] = crc;
  }
  const tables = [first];
  for (let table = 1; table < 8; table++) {
    const before = tables[table - 1]!;
    tables.push(before.map((crc) => (crc >>> 8) ^ first[crc & 0xff]!));
  }
  return tables;
}

/** The CRC of `data` from `start` to `end`, going on from the CRC `value` of what came before. */
export function crc32c(data: Uint8Array, start = 0, end = data.length, value = 0): number {
  const [t0, t1, t2, t3, t4, t5, t6, t7] = TABLES as [
    Int32Array,
    Int32Array,
    Int32Array,
    Int32Array,
    Int32Array,
    Int32Array,
    Int32Array,
    Int32Array,
  ];
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  let crc = ~value;
  let at = start;
  for (const last = end - 8; at <= last; at += 8) {
    const low = view.getInt32(at, true) ^ crc;
    const high = view.getInt32(at + 4, true);
    crc =
      t7[low & 0xff]! ^
      t6[(low >>> 8) & 0xff]! ^
      t5[(low >>> 16) & 0xff]! ^
      t4[low >>> 24]! ^
      t3[high & 0xff]! ^
      t2[(high >>> 8) & 0xff]! ^
      t1[(high >>> 16) & 0xff]! ^
      t0[high >>> 24]!;
  }
  for (; at < end; at++) crc = (crc >>> 8) ^ t0[(crc ^ data[at]!) & 0xff]!;
  return ~crc >>> 0;
}
