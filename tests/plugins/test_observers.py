from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from linn.core.config.topic_settings import TopicSettings
from linn.core.ports.observer import Observer, Observers


class Diary(Observer):
    """Writes down what it hears about topics, and ignores the rest."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def topic_created(self, topic: str, settings: TopicSettings) -> None:
        self.heard.append(f"+{topic} {settings.kind}")

    def topic_deleted(self, topic: str) -> None:
        self.heard.append(f"-{topic}")


class Grumbler(Observer):
    """An observer of which every method raises."""

    def broker_started(self, name: str, addresses: Sequence[str]) -> None:
        raise RuntimeError("no")

    def topic_created(self, topic: str, settings: TopicSettings) -> None:
        raise RuntimeError("no topics either")


def everything(observers: Observers) -> None:
    observers.broker_started("linn", ["127.0.0.1:5466"])
    observers.topic_created("a", TopicSettings())
    observers.connection_opened("capnp", "127.0.0.1:9")
    observers.connection_closed("capnp", "127.0.0.1:9", "")
    observers.topic_deleted("a")
    observers.broker_stopping("linn")


def test_an_observer_gets_the_events_that_it_overrides() -> None:
    diary = Diary()
    everything(Observers({"diary": diary}))
    assert diary.heard == ["+a queue", "-a"]


def test_an_observer_that_raises_is_logged_counted_and_isolated(caplog: pytest.LogCaptureFixture) -> None:
    diary = Diary()
    observers = Observers({"grumbler": Grumbler(), "diary": diary})
    with caplog.at_level(logging.ERROR, "linn.observer"):
        everything(observers)
    assert diary.heard == ["+a queue", "-a"]
    assert observers.failures == {"grumbler": 2, "diary": 0}
    assert ["grumbler" in message for message in caplog.messages] == [True, True]
