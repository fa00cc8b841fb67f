"""A plugin whose observer never returns once a topic is made."""

import signal

from linn.core.hookspecs import hookimpl
from linn.core.observer import Observer
from linn.core.topic_settings import TopicSettings


class Stuck(Observer):
    def topic_created(self, topic: str, settings: TopicSettings) -> None:
        while True:
            signal.pause()


@hookimpl
def linn_register_observer() -> Stuck:
    return Stuck()
