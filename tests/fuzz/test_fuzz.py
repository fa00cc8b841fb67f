"""Any bytes at all: everything that reads them gives a value or a `LinnError`, in bounded time and memory.

Each `fuzz_*.py` has one function `fuzz_one(data)` that holds a reader to that. Here it gets random and damaged inputs,
and the kept corpus; `make soak` lets atheris look for what leads on to new branches, for SOAK_FUZZ_S seconds in all.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HERE = Path(__file__).parent
TARGETS = ("batch", "codec", "predicate", "toml")
EXAMPLES = {"batch": 800, "codec": 500, "predicate": 600, "toml": 300}
"""Damaged inputs per target: two to four seconds each."""
CORPUS_BYTES_MAX = 1_000_000
SOAK_S = float(os.environ.get("SOAK_FUZZ_S", "3600"))
ENDING_S = 120
INPUT_S = 60
"""The time limit of one input, in wall-clock time: on a busy machine the first takes ten seconds."""
AS_A_GRANDCHILD = ("sh", "-c", '"$@"; exit $?', "sh")
"""Linux lets a child begin with its parent's peak of memory, which libFuzzer looks at; a child of sh's begins anew."""


@cache
def target(name: str) -> Callable[[bytes], None]:
    found: Callable[[bytes], None] = importlib.import_module(f"fuzz_{name}").fuzz_one
    return found


@cache
def corpus(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((HERE / "corpus" / name).iterdir())]


@st.composite
def damaged(draw: st.DrawFn, name: str) -> bytes:
    """An input of the corpus with some bytes changed, taken out, put in, or taken from another input."""
    data = bytearray(draw(st.sampled_from(corpus(name))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.sampled_from([0, 1, 1, 2, 4, 8, 30]))
        if draw(st.booleans()):
            other = draw(st.sampled_from(corpus(name)))
            begin = draw(st.integers(0, len(other)))
            new = other[begin : begin + draw(st.integers(0, 40))]
        else:
            numbers = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63])
            new = draw(st.binary(max_size=8) | numbers.map(lambda number: number.to_bytes(8, "little")))
        data[at : at + size] = new
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_the_kept_corpus_finds_nothing(name: str) -> None:
    assert corpus(name)
    for data in corpus(name):
        target(name)(data)


def test_the_kept_corpus_is_small() -> None:
    sizes = {path: path.stat().st_size for path in (HERE / "corpus").rglob("*") if path.is_file()}
    assert sum(sizes.values()) < CORPUS_BYTES_MAX


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs_give_values_or_known_errors_within_bounds(name: str) -> None:
    @settings(max_examples=EXAMPLES[name], deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(damaged(name) | st.binary(max_size=200))
    def each(data: bytes) -> None:
        target(name)(data)

    each()


@pytest.mark.soak
@pytest.mark.parametrize("name", TARGETS)
def test_guided_by_coverage_no_input_does_harm(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris has no wheel for this machine")
    found = tmp_path / "found"
    found.mkdir()
    seconds = max(1, round(SOAK_S / len(TARGETS)))
    arguments = [
        f"-max_total_time={seconds}",
        f"-timeout={INPUT_S}",
        f"-artifact_prefix={tmp_path}/harm-",
        str(found),
        f"{HERE}/corpus/{name}",
    ]
    log = tmp_path / "log"
    with log.open("wb") as output:
        explored = subprocess.run(
            [*AS_A_GRANDCHILD, sys.executable, str(HERE / "explore.py"), name, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=seconds + ENDING_S,
        )
    harm = {path.name: path.read_bytes().hex() for path in tmp_path.glob("harm-*")}
    assert (explored.returncode, harm) == (0, {}), log.read_text(errors="replace")[-4_000:]
