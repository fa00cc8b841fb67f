"""The pipelines that a configuration and the topics ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from linn.api import ServiceTopic
from linn.spark_plugin.service.settings import SinkSettings, SparkSettings
from linn.spark_plugin.spec import PipelineSpec

_NOT_IN_SPEC = ("name", "topics", "driver")


class Pipeline(msgspec.Struct, frozen=True):
    """A pipeline that is asked for."""

    spec: PipelineSpec
    driver: str
    """The group that it belongs to."""
    is_sink: bool
    """Whether it is the sink of a topic, whose name it has."""

    @property
    def starts_at_earliest(self) -> bool:
        """Whether it begins with the first record that each of its topics has."""
        options = {name.lower(): value for name, value in self.spec.source_options.items()}
        by_time = any(name.startswith(("startingtimestamp", "startingoffsetsbytimestamp")) for name in options)
        return not by_time and options["startingoffsets"].strip().lower() == "earliest"

    def problem(self, topics: Mapping[str, ServiceTopic]) -> tuple[str, str] | None:
        """The reason why it can't run on the topics that there are, and what to do; None if it can."""
        for name in self.spec.topics:
            topic = topics.get(name)
            if topic is None:
                return f'there is no topic "{name}"', "make the topic, or change the pipeline"
            if topic.settings.kind == "queue":
                return f'topic "{name}" is a queue, which can\'t be streamed', f'give it kind = "both": {name}'
        return None


def asked_for(settings: SparkSettings, topics: Mapping[str, ServiceTopic]) -> dict[str, Pipeline]:
    """All pipelines by name: those of the configuration, then the sinks of topics whose name is not taken."""
    found: dict[str, Pipeline] = {}
    for table in settings.pipelines:
        found.setdefault(table.name, _pipeline(table.name, table.topics, table, is_sink=False))
    for name, sink in sinks(topics):
        found.setdefault(name, _pipeline(name, (name,), sink, is_sink=True))
    return found


def sinks(topics: Mapping[str, ServiceTopic]) -> Iterator[tuple[str, SinkSettings]]:
    """The sinks of topics, by the topic's name."""
    for name, topic in topics.items():
        if topic.own is not None:
            assert isinstance(topic.own, SinkSettings)
            yield name, topic.own


def _pipeline(name: str, topics: tuple[str, ...], settings: SinkSettings, *, is_sink: bool) -> Pipeline:
    values = {key: value for key, value in msgspec.structs.asdict(settings).items() if key not in _NOT_IN_SPEC}
    values["source_options"] = _from_the_start(values["source_options"])
    return Pipeline(PipelineSpec(name=name, topics=topics, **values), settings.driver, is_sink)


def _from_the_start(options: Mapping[str, str]) -> dict[str, str]:
    """Return options of the source that begin with everything the topics have, unless they say otherwise."""
    is_given = any(name.lower() == "startingoffsets" for name in options)
    return dict(options) if is_given else {"startingOffsets": "earliest", **options}
