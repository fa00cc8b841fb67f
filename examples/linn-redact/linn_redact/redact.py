"""The interceptor: a batch comes in, and the same batch, or one with masks in it, goes on to be stored.

Labels are masked once per distinct (routing key, labels) of a batch. Headers and values cost a look at every record,
and only where the settings ask for it and the batch has any.
"""

from __future__ import annotations

import re

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import edit_batch
from linn.core.batch.record import Headers
from linn.core.batch.routes import Pair
from linn.core.config.topic_settings import TopicSettings
from linn_redact.settings import RedactSettings


class Redact:
    """The interceptor of one topic."""

    def __init__(self, topic: str, topic_settings: TopicSettings, settings: RedactSettings) -> None:
        self._labels = frozenset(settings.labels)
        self._headers = frozenset(settings.headers)
        self._values = [re.compile(pattern.encode()) for pattern in settings.values]
        self._mask = settings.mask
        self._mask_bytes = settings.mask.encode()

    def intercept(self, topic: str, batch: RecordBatch) -> RecordBatch | None:
        """The batch with masks, or the batch itself where there is nothing to mask."""
        pairs, headers, values = self._masked_pairs(batch), self._masked_headers(batch), self._masked_values(batch)
        if pairs is None and headers is None and values is None:
            return batch
        return edit_batch(batch, pairs=pairs, headers=headers, values=values)

    def _masked_pairs(self, batch: RecordBatch) -> list[Pair] | None:
        if not self._labels or batch.routes is None:
            return None
        before = batch.pairs()
        after = [Pair(pair.routing_key, tuple(self._masked_label(*label) for label in pair.labels)) for pair in before]
        return after if after != before else None

    def _masked_label(self, name: str, value: str | int | float | bool) -> tuple[str, str | int | float | bool]:
        return (name, self._mask) if name in self._labels else (name, value)

    def _masked_headers(self, batch: RecordBatch) -> list[Headers] | None:
        if not self._headers or batch.body().headers is None:
            return None
        before = [batch.headers(index) for index in range(batch.count)]
        after = [tuple(self._masked_header(*header) for header in headers) for headers in before]
        return after if after != before else None

    def _masked_header(self, name: str, value: bytes | None) -> tuple[str, bytes | None]:
        return (name, self._mask_bytes) if name in self._headers and value is not None else (name, value)

    def _masked_values(self, batch: RecordBatch) -> list[bytes | None] | None:
        if not self._values:
            return None
        before = [batch.value(index) for index in range(batch.count)]
        after = [value and self._masked_value(value) for value in before]
        return after if after != before else None

    def _masked_value(self, value: bytes) -> bytes:
        for pattern in self._values:
            # A function, because a mask with a backslash in it would be taken for a reference to a group.
            value = pattern.sub(lambda _: self._mask_bytes, value)
        return value
