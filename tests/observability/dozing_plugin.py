"""A plugin whose observer holds up the loop whenever a topic is made."""

import time

from linn.core.config.topic_settings import TopicSettings
from linn.core.plugins.hookspecs import hookimpl
from linn.core.ports.observer import Observer


class Dozer(Observer):
    def topic_created(self, topic: str, settings: TopicSettings) -> None:
        time.sleep(0.5)  # Not a wait of the test's: this is the fault that it is about.


@hookimpl
def linn_register_observer() -> Dozer:
    return Dozer()
