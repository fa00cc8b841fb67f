"""A plugin whose observer never returns once a topic is made."""

import time

from linn.core.config.topic_settings import TopicSettings
from linn.core.plugins.hookspecs import hookimpl
from linn.core.ports.observer import Observer


class Stuck(Observer):
    def topic_created(self, topic: str, settings: TopicSettings) -> None:
        while True:
            time.sleep(0.01)  # Not a wait of a test's: this is the fault, in short calls, which signals end.


@hookimpl
def linn_register_observer() -> Stuck:
    return Stuck()
