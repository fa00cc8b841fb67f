"""TransactionLog: the log of all transactions' names, numbers and decisions, and of the boots of the machine.

Law: after a power loss the log says so, until it has what became of the names. So a start that a full disk keeps from
writing anything is the same for the next one.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import trio

from linn.core.env.env import Clock, Spawn
from linn.core.errors.tree import StorageError
from linn.core.log.state_log import StateLog
from linn.core.transactions.event import (
    Led,
    NameEvent,
    Started,
    TransactionEvent,
    decode_transaction_events,
    encode_transaction_events,
)
from linn.core.transactions.producer import Awaits

MakeLog = Callable[[], Awaitable[StateLog]]


class TransactionLog:
    """The log. Without one, nothing is kept, and nothing is waited for."""

    def __init__(self, snapshot: Callable[[], list[TransactionEvent]], clock: Clock, spawn: Spawn) -> None:
        """`snapshot` returns events that make the whole state."""
        self.state: StateLog | None = None
        self.boot_id = ""
        """The boot of the machine."""
        self._all_events = snapshot
        self._clock = clock
        self._spawn = spawn
        self._make: MakeLog | None = None
        self._making = trio.Lock()
        self._last_boot = ""
        """The boot in which the log was written; "": the broker has stopped in order since, or there is no log."""
        self._is_boot_logged = False

    def open(self, state: StateLog | None, make: MakeLog | None, boot_id: str) -> None:
        """Use a log, if there is one. `make` creates it when it is needed; None: never. `boot_id`: "" if unknown."""
        self.state, self._make, self.boot_id = state, make, boot_id or "unknown"

    async def replay(self) -> AsyncIterator[tuple[bool, list[NameEvent]]]:
        """The events of each record, and whether they replace all before. Raises LogCorrupt, StorageError."""
        if self.state is not None:
            async for record in self.state.replay():
                is_restart, events = decode_transaction_events(record)
                self._last_boot = next((it.boot_id for it in events if isinstance(it, Started)), self._last_boot)
                yield is_restart, [event for event in events if not isinstance(event, Started | Led)]

    @property
    def has_lost_tail(self) -> bool:
        """Whether a power loss may have taken the last records of this log, or of others."""
        return self._last_boot not in ("", self.boot_id) or self._last_boot == "unknown"

    def note_start(self) -> None:
        """Log that the broker has started, after `replay`; and all that is known, if that is news since a power loss.

        A full disk does not prevent it.
        """
        if self.state is not None and not self._is_boot_logged:
            with contextlib.suppress(StorageError):
                if self.has_lost_tail:
                    self.state.append(self._snapshot()[0])
                else:
                    self.state.append(encode_transaction_events([Started(self.boot_id)]))
                self._is_boot_logged = True

    async def ensure(self) -> None:
        """Make the log, if there is none and there is to be one. Raises StorageError."""
        if self._make is not None:
            async with self._making:
                self.state = self.state or await self._make()
                self.note_start()

    def write(self, event: NameEvent) -> None:
        """Append an event. Raises StorageError, NotLeader: it is not logged."""
        self._write(event)

    def _write(self, event: TransactionEvent) -> None:
        if self.state is not None:
            self.state.append(encode_transaction_events([event]))
            if self.state.is_due():
                state = self.state
                self._spawn(lambda: state.compact_in_background(self._snapshot))

    @property
    def end(self) -> int:
        """The offset after its last record."""
        return 0 if self.state is None else self.state.partition.log.bounds()[1]

    async def confirm(self, since: int) -> None:
        """Wait until everything is committed, and something that was appended at `since` or later: so this broker led
        the log after that. Raises NotLeader, StorageError.
        """
        if self.end == since:
            self._write(Led())
        await self.until_committed()

    def _snapshot(self) -> list[bytes]:
        return [encode_transaction_events([*self._all_events(), Started(self.boot_id)], restart=True)]

    @property
    def is_synced(self) -> bool:
        """Whether it is committed only on stable storage."""
        return self.state is not None and self.state.partition.log.capabilities.confirm_after_sync

    @property
    def is_committed(self) -> bool:
        """Whether the whole log is committed."""
        state = self.state
        return state is None or state.committed.offset >= state.partition.log.bounds()[1]

    def awaits(self) -> Awaits:
        """The mark to wait for until the whole log is committed."""
        return [] if self.state is None else [(self.state.committed, self.state.partition.log.bounds()[1])]

    async def until_committed(self) -> None:
        """Wait until the whole log is committed."""
        for mark, end in self.awaits():
            await mark.wait(end)

    async def enforce_retention(self) -> None:
        """Let the log do its housekeeping."""
        if self.state is not None:
            await self.state.partition.enforce_retention(self._clock.now_ms())

    async def close(self, *, is_synced: bool) -> None:
        """Sync and close the log. `is_synced`: the broker stops in order, and all topics are on stable storage."""
        if self.state is not None:
            if is_synced and self._is_boot_logged:
                with contextlib.suppress(StorageError):
                    self.state.append(encode_transaction_events([Started("")]))
            await self.state.partition.close()
