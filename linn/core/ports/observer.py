"""Observers: plugins that are notified of the broker's events, and can't influence it.

Laws: an observer is called synchronously, from the loop, for rare events only (never per batch or message). An observer
that raises is logged, counted and isolated: the others are still notified and the broker continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from linn.core.config.topic_settings import TopicSettings

logger = logging.getLogger("linn.observer")


class Observer(Protocol):
    """The events of an observer. Subclass it and override the relevant methods; the others do nothing.

    No method may block or wait: do such work in your own thread or task.
    """

    def broker_started(self, name: str, addresses: Sequence[str]) -> None:
        """The broker takes connections at `addresses` (as bound, with real ports)."""
        return

    def broker_stopping(self, name: str) -> None:
        """The broker takes no new work and has begun to drain."""
        return

    def topic_created(self, topic: str, settings: TopicSettings) -> None:
        """A topic exists: it was created over the wire or from TOML, or recovered at start-up."""
        return

    def topic_deleted(self, topic: str) -> None:
        """A topic and all its records were deleted."""
        return

    def connection_opened(self, protocol: str, peer: str) -> None:
        """A client connected; nothing has been read from it yet."""
        return

    def connection_closed(self, protocol: str, peer: str, reason: str) -> None:
        """A connection ended. `reason` is one line: "" for an orderly end, otherwise the error's text."""
        return


class Observers:
    """All observers behind one object that never raises. `failures` counts exceptions by plugin."""

    def __init__(self, observers: Mapping[str, Observer]) -> None:
        self._observers = dict(observers)
        self.failures: dict[str, int] = dict.fromkeys(self._observers, 0)

    def broker_started(self, name: str, addresses: Sequence[str]) -> None:
        """Notify all; see `Observer.broker_started`."""
        self._tell("broker_started", lambda observer: observer.broker_started(name, addresses))

    def broker_stopping(self, name: str) -> None:
        """Notify all; see `Observer.broker_stopping`."""
        self._tell("broker_stopping", lambda observer: observer.broker_stopping(name))

    def topic_created(self, topic: str, settings: TopicSettings) -> None:
        """Notify all; see `Observer.topic_created`."""
        self._tell("topic_created", lambda observer: observer.topic_created(topic, settings))

    def topic_deleted(self, topic: str) -> None:
        """Notify all; see `Observer.topic_deleted`."""
        self._tell("topic_deleted", lambda observer: observer.topic_deleted(topic))

    def connection_opened(self, protocol: str, peer: str) -> None:
        """Notify all; see `Observer.connection_opened`."""
        self._tell("connection_opened", lambda observer: observer.connection_opened(protocol, peer))

    def connection_closed(self, protocol: str, peer: str, reason: str) -> None:
        """Notify all; see `Observer.connection_closed`."""
        self._tell("connection_closed", lambda observer: observer.connection_closed(protocol, peer, reason))

    def _tell(self, event: str, tell: Callable[[Observer], None]) -> None:
        for name, observer in self._observers.items():
            try:
                tell(observer)
            except Exception:
                self.failures[name] += 1
                about = {"plugin": name, "event_name": event, "count": self.failures[name]}
                logger.exception("observer %(plugin)r failed in %(event_name)s (failure %(count)d)", about)
