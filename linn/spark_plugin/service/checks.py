"""Checks of Spark pipelines against each other, and against the topics that they read and write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from linn.api import ServiceTopic, did_you_mean
from linn.core.errors.names import name_problem
from linn.spark_plugin.service.live_sinks import connection_problem, is_plain
from linn.spark_plugin.service.pipeline import sinks
from linn.spark_plugin.service.secret_options import plain_secrets
from linn.spark_plugin.service.settings import SinkSettings, SparkSettings

Place = tuple[str | int, ...]

DRIVER_CHARACTERS_MAX = 200
"""Limit of a driver's name, which is part of a user's name; that has up to 255 bytes."""
_OWN_PATH = ("parquet", "json")
"""Formats whose folder takes one query: Spark's sink skips micro-batches whose number it has, even from another query.
Tables of lakes take several.
"""


def check(settings: SparkSettings, topics: Mapping[str, ServiceTopic], report: Callable[[Place, str], None]) -> None:
    """Report every pipeline that can't work; the check of a `ServiceKind`."""
    for index, path in enumerate(settings.paths):
        if not is_plain(path):
            report(("spark", "paths", index), "must be a folder or URL without .., wildcards and escapes")
    for key, text in plain_secrets(settings.conf):
        report(("spark", "conf", key), text)
    for connection, options in settings.connections.items():
        for key, text in plain_secrets(options):
            report(("spark", "connections", connection, key), text)
    taken: dict[str, Place] = {}
    folders: dict[tuple[str, str], str] = {}
    for at, name, read, pipeline in _pipelines(settings, topics):
        if name in taken:
            report((*at, "name") if at[0] == "spark" else at, f'there are two pipelines of the name "{name}"')
        taken.setdefault(name, at)
        wrong = name_problem(name)
        if wrong is not None and at[0] == "spark":
            report((*at, "name"), wrong)
        wrong = name_problem(pipeline.driver) or _too_long(pipeline.driver)
        if wrong is not None:
            report((*at, "driver"), wrong)
        for key, text in plain_secrets(pipeline.options):
            report((*at, "options", key), text)
        wrong = connection_problem(settings, pipeline)
        if wrong is not None:
            report((*at, "options"), wrong)
        for key, folder in _own_folders(pipeline):
            other = folders.setdefault((key, folder.rstrip("/")), name)
            if other != name:
                text = f'is the {key} of "{other}" too, and one would lose what the other writes: give each its own'
                report((*at, key), text)
        for place, topic in read:
            _check_source(topic, topics, place, report)
        if pipeline.dead_letter is not None and pipeline.dead_letter not in topics:
            text = f'there is no topic "{pipeline.dead_letter[:80]}"{did_you_mean(pipeline.dead_letter, topics)}'
            report((*at, "dead_letter"), text)
        elif pipeline.dead_letter in [topic for _, topic in read]:
            report((*at, "dead_letter"), f'is a topic that the pipeline reads: "{pipeline.dead_letter}"')


def _too_long(driver: str) -> str | None:
    if len(driver) > DRIVER_CHARACTERS_MAX:
        return f"a driver's name has at most {DRIVER_CHARACTERS_MAX} characters, this one has {len(driver)}"
    return None


def _pipelines(
    settings: SparkSettings, topics: Mapping[str, ServiceTopic]
) -> Iterator[tuple[Place, str, list[tuple[Place, str]], SinkSettings]]:
    """Yield key path, name, topics with their key paths, and settings of every pipeline."""
    for index, pipeline in enumerate(settings.pipelines):
        at: Place = ("spark", "pipelines", index)
        read: list[tuple[Place, str]] = [
            ((*at, "topics", number), topic) for number, topic in enumerate(pipeline.topics)
        ]
        yield at, pipeline.name, read, pipeline
    for name, sink in sinks(topics):
        yield ("topics", name, "spark_sink"), name, [(("topics", name, "spark_sink"), name)], sink


def _own_folders(pipeline: SinkSettings) -> Iterator[tuple[str, str]]:
    """Yield key and folder of each folder that no other pipeline may use."""
    if pipeline.path is not None and pipeline.format in _OWN_PATH:
        yield "path", pipeline.path
    if pipeline.checkpoint is not None:
        yield "checkpoint", pipeline.checkpoint


def _check_source(
    name: str, topics: Mapping[str, ServiceTopic], place: Place, report: Callable[[Place, str], None]
) -> None:
    topic = topics.get(name)
    if topic is None:
        report(place, f'there is no topic "{name[:80]}"{did_you_mean(name, topics)}')
    elif topic.settings.kind == "queue":
        text = f'topic "{name}" is a queue, which can\'t be streamed: give it kind = "both", a queue on a stream'
        report(place, text)
