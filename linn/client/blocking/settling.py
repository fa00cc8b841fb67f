"""Settlements of a blocking consumer: gathered from all threads, carried out by the loop in the order of the calls.

Laws: an ack costs a lock and no call into the loop, and adjoining acks are merged; any other verdict is carried out
before the call returns, so that the next step of an iteration knows of it; any thread may wait for a handle, any number
of times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import anyio.lowlevel

from linn.client.arguments import checked_reason
from linn.client.blocking.loop_thread import LoopThread
from linn.client.consume import settling as asynchronous
from linn.client.consume.message import Batch
from linn.client.consume.settling import check_ms
from linn.wire.messages import Verdict


@dataclass(slots=True, eq=False, repr=False)
class Settled:
    """Handle of a settlement. Waiting for the broker's answer with `wait` is optional.

    Example:
        settled = message.ack()
        settled.wait()
    """

    _settlements: Settlements | None
    _batch: Batch
    _first: int
    _end: int
    _verdict: Verdict
    _ms: int
    _reason: str = ""
    _carried_out: asynchronous.Settled | None = None
    """The async settlement, set by the loop."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the broker's answer. A refusal is raised here instead of by the consumer's next step.

        Raises:
            DeliveryNotCurrent, GroupFenced, SubscriptionWrongKind: the broker refused.
            RequestTimeout: `timeout_s` seconds have passed; the settlement is on its way all the same.

        Example:
            message.ack().wait(timeout_s=5)
        """
        if self._settlements is not None:
            self._settlements.wait(self, timeout_s)


def is_void(settled: Settled) -> bool:
    """Tell whether the connection was lost before a settlement was answered: the records may be delivered again."""
    return asynchronous.is_void(settled._carried_out)


class Settlements:
    """Settlements of one consumer that the loop has not taken yet."""

    def __init__(self, thread: LoopThread, on_nacked: Callable[[], None] = lambda: None) -> None:
        """`on_nacked` is called by the loop when a nack was carried out, before its answer can arrive."""
        self._thread = thread
        self._on_nacked = on_nacked
        self._lock = threading.RLock()
        self._waiting: list[Settled] = []

    def add(self, batch: Batch, first: int, end: int, verdict: Verdict, ms: int, reason: str = "") -> Settled:
        """Settle records by index. Raises MessageInvalid if an argument is wrong, ConnectionLost."""
        check_ms(ms)
        reason = checked_reason(reason) if reason != "" else ""
        self._thread.check()
        subscription = batch._subscription
        assert subscription is not None, "a consumer's batches are delivered"
        if verdict == Verdict.ACK and not subscription.waits_for_acks:
            return Settled(None, batch, first, end, verdict, ms)
        with self._lock:
            waiting = self._waiting
            if waiting:
                last = waiting[-1]
                if last._end == first and last._batch is batch and last._verdict == verdict == Verdict.ACK:
                    last._end = end
                    return last
            else:
                self._thread.soon(self.carry_out)
            settled = Settled(self, batch, first, end, verdict, ms, reason)
            waiting.append(settled)
        if verdict != Verdict.ACK:
            self._thread.call(anyio.lowlevel.checkpoint)  # The loop runs earlier callbacks before this call.
        return settled

    def carry_out(self) -> None:
        """Pass waiting settlements to their subscriptions. Called by the loop."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for settled in waiting:
            batch, verdict, ms, reason = settled._batch, settled._verdict, settled._ms, settled._reason
            settled._carried_out = batch._settle(settled._first, settled._end, verdict, ms, reason)
        if any(settled._verdict == Verdict.NACK for settled in waiting):
            self._on_nacked()

    def wait(self, settled: Settled, timeout_s: float | None) -> None:
        """Wait for one settlement; see `Settled.wait`."""
        self._thread.call_within(timeout_s, "settling", self._wait, settled)

    async def _wait(self, settled: Settled) -> None:
        assert settled._carried_out is not None
        await settled._carried_out
