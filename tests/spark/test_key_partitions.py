"""Partitions of columns of keys: those that every client gives them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linn.core.batch.key_hash import key_hash, partition_of

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'linn[spark]'")
pytest.importorskip("numpy", reason="numpy is not installed: pip install 'linn[spark]'")

from linn.spark_plugin.sink.job import by_key, key_hashes  # noqa: E402

KEYS = st.lists(st.none() | st.binary(max_size=11) | st.binary(min_size=90, max_size=100), max_size=40)


@given(KEYS, st.integers(0, 5))
def test_hashes_are_those_of_all_clients(keys: list[bytes | None], first: int) -> None:
    column = pa.array(keys, pa.binary())[first:]
    found = [int(hash) for key, hash in zip(keys[first:], key_hashes(column), strict=True) if key is not None]
    assert found == [key_hash(key) for key in keys[first:] if key is not None]


@given(KEYS, st.integers(1, 7))
def test_each_row_is_in_the_part_of_its_key_and_rows_keep_their_order(
    keys: list[bytes | None], partitions: int
) -> None:
    batch = pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.binary()), "n": pa.array(range(len(keys)))})
    seen = []
    for partition, rows in by_key(batch, partitions):
        numbers = rows.column("n").to_pylist()
        assert numbers == sorted(numbers)
        seen += numbers
        for key in rows.column("key").to_pylist():
            assert partition == (None if key is None else partition_of(key, partitions))
    assert sorted(seen) == [*range(len(keys))]
