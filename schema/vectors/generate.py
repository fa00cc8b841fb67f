"""Writes the test vectors: bytes that every client must read alike, and what they say.

See docs/how-to/write-a-client.md.

    python schema/vectors/generate.py [FOLDER]

The same linn always gives the same files. `batch_vectors.py` and `frame_vectors.py` say which there are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from batch_vectors import batch_vectors
from frame_vectors import frame_vectors

HERE = Path(__file__).resolve().parent


def write_vectors(folder: Path) -> None:
    """Write all files of both kinds and `manifest.json` into `folder`, in place of those that are there."""
    manifest: dict[str, list[dict[str, Any]]] = {}
    for kind, vectors in (("batches", batch_vectors()), ("frames", frame_vectors())):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for old in (folder / kind).glob("*.bin"):
            old.unlink()
        manifest[kind] = []
        for vector in vectors:
            name = f"{kind}/{vector.name}.bin"
            (folder / name).write_bytes(vector.content)
            manifest[kind].append({"file": name, "what": vector.what, **vector.says})
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_vectors(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
