"""Coverage-guided fuzzing of one target, by atheris: `python tests/fuzz/explore.py TARGET [libFuzzer's arguments]`.

Without folders among the arguments it begins from the kept corpus, and changes nothing there. To keep what was found:
`explore.py TARGET -merge=1 tests/fuzz/corpus/TARGET FOUND`.
"""

from __future__ import annotations

import importlib
import sys
import tracemalloc
from pathlib import Path

import atheris

INPUT_BYTES_MAX = {"codec": 4_096, "batch": 4_096, "predicate": 1_024, "toml": 8_192}
"""Largest inputs of each target: large enough for every limit that its bytes can reach."""
CORPUS = Path(__file__).parent / "corpus"
MEMORY_MIB_MAX = 1_024
INPUT_S_MAX = 10


def main() -> None:
    """The program."""
    name, *arguments = sys.argv[1:]
    folders = [argument for argument in arguments if not argument.startswith("-")]
    atheris.enabled_hooks.add("str")
    with atheris.instrument_imports(include=["linn", "tomllib"]):
        target = importlib.import_module(f"fuzz_{name}")
    tracemalloc.start()
    limits = [
        f"-max_len={INPUT_BYTES_MAX[name]}",
        f"-rss_limit_mb={MEMORY_MIB_MAX}",
        f"-timeout={INPUT_S_MAX}",
    ]
    # libFuzzer starts itself again, through a shell, where it merges.
    itself = f"{sys.executable} {sys.argv[0]} {name}"
    atheris.Setup([itself, *limits, *arguments, *([] if folders else [str(CORPUS / name)])], target.fuzz_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
