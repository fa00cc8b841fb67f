// A zstd that an application could bring: a library that only decompresses.

import { Decompress } from "fzstd";
import type { Zstd } from "../src/index.js";

export const ZSTD: Zstd = {
  decompress(frame) {
    const pieces: Uint8Array[] = [];
    new Decompress((piece) => pieces.push(piece.slice())).push(frame, true);
    return Buffer.concat(pieces);
  },
};
