"""A plugin whose observer fails whenever a topic is made."""

from linn.core.hookspecs import hookimpl
from linn.core.observer import Observer
from linn.core.topic_settings import TopicSettings


class Grumbler(Observer):
    def topic_created(self, topic: str, settings: TopicSettings) -> None:
        raise RuntimeError("no")


@hookimpl
def linn_register_observer() -> Grumbler:
    return Grumbler()
