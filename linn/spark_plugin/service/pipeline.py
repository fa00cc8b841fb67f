"""Pipelines of a configuration and of topics' sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from linn.api import MASK, Env, Secret, ServiceTopic
from linn.core.errors.names import name_problem
from linn.rights import CONSUME, EXCHANGE, PUBLISH, TOPIC, TRANSACTION, USE, Need
from linn.spark_plugin.service.settings import SinkSettings, SparkSettings
from linn.spark_plugin.spec import CONNECTION, PipelineSpec, transactions_of

_NOT_IN_SPEC = ("name", "topics", "driver")


class Pipeline(msgspec.Struct, frozen=True):
    """Configured pipeline."""

    spec: PipelineSpec
    driver: str
    """Name of its driver group."""
    is_sink: bool
    """Whether the pipeline is the sink of a topic, whose name it bears."""

    @property
    def starts_at_earliest(self) -> bool:
        """Whether the pipeline begins at the first record of each of its topics."""
        options = {name.lower(): value for name, value in self.spec.source_options.items()}
        by_time = any(name.startswith(("startingtimestamp", "startingoffsetsbytimestamp")) for name in options)
        return not by_time and options["startingoffsets"].strip().lower() == "earliest"

    def elsewhere(self, find_topic: Callable[[str], ServiceTopic | None]) -> str | None:
        """Return which other broker runs the pipeline, the one that leads its first topic; None: this one does."""
        topic = find_topic(self.spec.topics[0])
        return topic.led_elsewhere if topic is not None else None

    def problem(self, topics: Mapping[str, ServiceTopic]) -> tuple[str, str] | None:
        """Return the reason why the pipeline can't run on the present topics, and the remedy; None if it can."""
        for name in self.spec.topics:
            topic = topics.get(name)
            if topic is None:
                return f'there is no topic "{name}"', "make the topic, or change the pipeline"
            if topic.settings.kind == "queue":
                return f'topic "{name}" is a queue, which can\'t be streamed', f'give it kind = "both": {name}'
        return None


def needs_of(topics: Iterable[str], pipeline: SinkSettings | PipelineSpec) -> Iterator[Need]:
    """Yield the rights without which a pipeline can't work: to read its topics, and to write to others."""
    for topic in topics:
        yield Need(CONSUME, TOPIC, topic)
    if pipeline.dead_letter is not None:
        yield Need(PUBLISH, TOPIC, pipeline.dead_letter)
    for kind in (TOPIC, EXCHANGE) if pipeline.format == "linn" else ():
        if kind in pipeline.options:
            yield Need(PUBLISH, kind, str(pipeline.options[kind]))


def driver_rights(pipelines: Iterable[PipelineSpec]) -> dict[str, list[str]]:
    """Return the rules of a driver of these pipelines, and no more: it has also the names of their transactions."""
    found: dict[str, list[str]] = {}
    for pipeline in pipelines:
        for operation, kind, name in needs_of(pipeline.topics, pipeline):
            if name_problem(name) is None:  # A "*" would be more than a name.
                found.setdefault(f"{kind}:{name}", []).append(operation)
        found[f"{TRANSACTION}:{transactions_of(pipeline.name)}*"] = [USE]
    return found


def revealed(spec: PipelineSpec, env: Env) -> tuple[PipelineSpec, tuple[str, ...]]:
    """Return the specification with the values of its secrets, for its process alone, and these values.

    Raises SecretUnusable.
    """
    values = {key: secret.reveal(env) for key, secret in spec.secrets.items()}
    return msgspec.structs.replace(spec, options={**spec.options, **values}, secrets={}), tuple(values.values())


def asked_for(settings: SparkSettings, topics: Mapping[str, ServiceTopic]) -> dict[str, Pipeline]:
    """Return all pipelines by name: pipelines of the configuration, then sinks of topics whose name is not taken."""
    found: dict[str, Pipeline] = {}
    for table in settings.pipelines:
        found.setdefault(table.name, _pipeline(settings, table.name, table.topics, table, is_sink=False))
    for name, sink in sinks(topics):
        found.setdefault(name, _pipeline(settings, name, (name,), sink, is_sink=True))
    return found


def sinks(topics: Mapping[str, ServiceTopic]) -> Iterator[tuple[str, SinkSettings]]:
    """Return the sinks of topics, by the topic's name."""
    for name, topic in topics.items():
        if topic.own is not None:
            assert isinstance(topic.own, SinkSettings)
            yield name, topic.own


def _pipeline(
    spark: SparkSettings, name: str, topics: tuple[str, ...], settings: SinkSettings, *, is_sink: bool
) -> Pipeline:
    values = {key: value for key, value in msgspec.structs.asdict(settings).items() if key not in _NOT_IN_SPEC}
    values["source_options"] = _from_the_start(values["source_options"])
    options = _connected(spark, settings.options)
    secrets = {key: value for key, value in options.items() if isinstance(value, Secret)}
    values["options"] = {key: MASK if key in secrets else value for key, value in options.items()}
    values["secrets"] = secrets
    return Pipeline(PipelineSpec(name=name, topics=topics, **values), settings.driver, is_sink)


def _connected(spark: SparkSettings, options: Mapping[str, str | Secret]) -> dict[str, str | Secret]:
    """Return options of a sink, with the options of the connection that they name."""
    own = {name: value for name, value in options.items() if name != CONNECTION}
    return {**spark.connections.get(str(options.get(CONNECTION, "")), {}), **own}


def _from_the_start(options: Mapping[str, str]) -> dict[str, str]:
    """Return options of the source, with `startingOffsets` earliest unless they set a start."""
    is_given = any(name.lower() == "startingoffsets" for name in options)
    return dict(options) if is_given else {"startingOffsets": "earliest", **options}
