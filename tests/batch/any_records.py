"""Hypothesis strategies for records and batches, and what a record looks like when nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from uuid import UUID

from hypothesis import strategies as st

from linn.core.batch.batch import ID_MASK, Codec, RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record

_UINT32 = st.integers(0, 2**32 - 1)
_LOOKALIKES = st.sampled_from([True, 1, 1.0, False, 0, 0.0, -0.0, "", "1", float("nan"), float("inf"), float("-inf")])
_LABEL_VALUES = _LOOKALIKES | st.text(max_size=8) | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.booleans()
_BINARY = st.none() | st.binary(max_size=12)
_ANY = st.builds(
    Record,
    value=_BINARY,
    key=_BINARY,
    routing_key=st.sampled_from(["", "a.b", "départ.JFK", "\x00"]) | st.text(max_size=8),
    labels=st.dictionaries(st.sampled_from("abc") | st.text(max_size=4), _LABEL_VALUES, max_size=3),
    headers=st.lists(st.tuples(st.sampled_from(["h", ""]) | st.text(max_size=4), _BINARY), max_size=3).map(tuple),
    id=st.none() | st.uuids(),
    timestamp_ms=st.integers(-(2**63), 2**63 - 1),
    priority=st.integers(0, 255),
    delay_ms=_UINT32,
    ttl_ms=_UINT32,
    due_ms=st.integers(-(2**63), 2**63 - 1),
)
_FIELDS = [field.name for field in fields(Record)]
BASE_IDS = st.integers(0, ID_MASK) | st.just(ID_MASK - 1)
CODECS = st.sampled_from(Codec)


@st.composite
def record_lists(draw: st.DrawFn, max_size: int = 12) -> list[Record]:
    """Records of which each field is free, or the default in all of them: so every column is absent at times."""
    drawn = draw(st.lists(_ANY, min_size=1, max_size=max_size))
    free = draw(st.sets(st.sampled_from(_FIELDS)) | st.just(set(_FIELDS)))
    return [replace(Record(), **{name: getattr(record, name) for name in free}) for record in drawn]


@st.composite
def stored_batches(draw: st.DrawFn) -> tuple[RecordBatch, list[str]]:
    """A stamped batch, and what it holds."""
    records, base_id = draw(record_lists()), draw(BASE_IDS)
    batch = build_from_records(records, base_id=base_id, codec=draw(CODECS))
    batch.stamp(draw(st.integers(0, 2**62)), draw(st.integers(0, 2**62)), 3, 4)
    return batch, published(records, base_id)


def published(records: Sequence[Record], base_id: int) -> list[str]:
    """The expected content for readers: `exact` of each record with its id."""
    ids = [UUID(int=(base_id + index) & ID_MASK) for index in range(len(records))]
    return [exact(replace(record, id=record.id or ids[index])) for index, record in enumerate(records)]


def exact(record: Record) -> str:
    """Return all of a record as text that tells True from 1, 0.0 from -0.0, and finds NaN the same as NaN."""
    return repr(replace(record, labels=dict(sorted(record.labels.items()))))


def contents(batch: RecordBatch) -> list[str]:
    """The records that readers find in a batch's bytes."""
    return [exact(record) for record in RecordBatch(bytes(batch.message)).records()]
