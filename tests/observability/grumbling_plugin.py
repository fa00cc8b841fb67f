"""A plugin whose observer fails whenever a topic is made."""

from linn.core.config.topic_settings import TopicSettings
from linn.core.plugins.hookspecs import hookimpl
from linn.core.ports.observer import Observer


class Grumbler(Observer):
    def topic_created(self, topic: str, settings: TopicSettings) -> None:
        raise RuntimeError("no")


@hookimpl
def linn_register_observer() -> Grumbler:
    return Grumbler()
