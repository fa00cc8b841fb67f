"""The interceptor port: a plugin that sees each batch on its way into a topic, and may change or drop it.

Laws: interceptors are bound once per topic that names them; a topic without interceptors costs one test of a tuple per
batch. They run after the batch was verified and routed and before it is stored, in the order of the topic's setting. An
interceptor that raises fails that publish: nothing of it is stored, in any topic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from linn.core.batch.batch import BatchLimits, Format, RecordBatch
from linn.core.errors.texts import counted
from linn.core.errors.tree import InterceptorFailed, LinnError

if TYPE_CHECKING:
    from linn.core.config.topic_settings import TopicSettings


class Interceptor(Protocol):
    """An interceptor of one topic's batches."""

    def intercept(self, topic: str, batch: RecordBatch) -> RecordBatch | None:
        """Return the batch to store: the given one, or another with the same number of records; None to store nothing.

        Synchronous, in the broker's loop, once per batch; `edit_batch` changes columns. The given batch's
        body may have another format; its records can be read anyway. A new batch must have linn's own format. Never
        change the given batch in place, because it may go to other topics too. A publish that waits for room is passed
        again when it is retried, so equal batches should give equal answers. Dropped records are confirmed with no
        copies, like unroutable records. Copies of dead letters pass as well, with their labels; a refused one is lost.

        A LinnError refuses the publish, and its producer gets it unchanged; other exceptions become
        `InterceptorFailed`. An error with `indexes` (see `LinnError.of_messages`) refuses only these records: the
        others are passed again.
        """


@dataclass(frozen=True, slots=True)
class InterceptorKind:
    """An interceptor, as a plugin registers it."""

    name: str
    """The value of `interceptor =` in an `[interceptors.*]` table, and the name of a table that always exists."""
    settings: type[Any] | None
    """A frozen msgspec.Struct with a default and a help text for each field; None without settings."""
    make: Callable[[str, TopicSettings, Any], Interceptor]
    """(topic's name, topic's settings, own settings or None) -> the interceptor for one topic. Does no I/O."""


@dataclass(frozen=True, slots=True)
class BoundInterceptor:
    """An interceptor at its place in one topic."""

    name: str
    """The interceptor's name in the topic's `interceptors`."""
    owner: str
    """A description of the plugin that registered it: `plugin "redact" (linn-redact 1.0)`."""
    interceptor: Interceptor
    limits: BatchLimits

    def intercept(self, topic: str, batch: RecordBatch) -> RecordBatch | None:
        """Call the interceptor, and check the result like a batch from a producer.

        Raises InterceptorFailed, and the interceptor's LinnErrors.
        """
        try:
            found = self.interceptor.intercept(topic, batch)
            if found is not batch and found is not None:
                self._check(found, batch)
        except LinnError:
            raise
        except Exception as error:
            raise self._failure(topic, f"{type(error).__name__}: {error}") from error
        return found

    def _check(self, found: object, batch: RecordBatch) -> None:
        """Check an interceptor's result. Raises TypeError, ValueError."""
        if not isinstance(found, RecordBatch):
            raise TypeError(f"intercept() returned a {type(found).__name__}, not a RecordBatch")
        if found.format != Format.NATIVE:
            raise ValueError(f"intercept() returned a new batch of format {found.format}, not linn's own")
        if found.count != batch.count:
            raise ValueError(
                f"{counted(batch.count, 'record')} came in and {found.count:,} out: drop a whole batch or nothing"
            )
        try:
            found.verify(self.limits)
        except LinnError as error:
            raise ValueError(f"intercept() returned a batch that can't be stored: {error.text}") from error

    def _failure(self, topic: str, text: str) -> InterceptorFailed:
        return InterceptorFailed(f'interceptor "{self.name}" of topic {topic}, of {self.owner}, failed: {text}')


def intercepted(bound: tuple[BoundInterceptor, ...], topic: str, batch: RecordBatch) -> RecordBatch | None:
    """Pass a batch through all interceptors of a topic; None if one of them drops it. Raises LinnError."""
    found: RecordBatch | None = batch
    for interceptor in bound:
        if found is None:
            return None
        found = interceptor.intercept(topic, found)
    return found
