"""Examination of all logs before the first one is opened: a refused start changes no log.

Law: every log that can't be opened is reported in the broker's log, and the start fails with the first error.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from linn.core.config.config import Config
from linn.core.config.topic_settings import TopicSettings
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import LogCorrupt
from linn.core.groups.topic_positions import groups_log
from linn.core.topics.message_index import INDEX_TOPIC, index_topic
from linn.core.topics.shared_entry import OWN_QUEUE, SharedEntry, is_state_topic, state_topic
from linn.core.topics.timing_logs import BESIDE, timing_topic
from linn.core.topics.topic_maker import TopicMaker
from linn.verbs import TRANSACTIONS_TOPIC

logger = logging.getLogger("linn.storage")


async def examine_logs(
    config: Config,
    maker: TopicMaker,
    topics: Mapping[str, TopicSettings],
    entries: Mapping[str, Mapping[str, SharedEntry]],
) -> Collection[str]:
    """Examine the logs of the topics that existed before this start, by their settings at that time, and the logs of
    their named subscriptions and groups.

    Returns the internal topics of positions of groups and of delayed records, as far as there are some, or the engine
    can't tell.

    Raises LogCorrupt, StorageError: nothing was changed.
    """
    refused: LogCorrupt | None = None
    found = set[str]()
    _refuse_former_groups(config, maker)
    logs: list[tuple[str, TopicSettings | None, Mapping[str, int]]] = [
        (TRANSACTIONS_TOPIC, None, {TRANSACTIONS_TOPIC: 0})
    ]
    for name, settings in topics.items():
        logs.append((name, settings, _logs_of(config, maker, name, settings, entries[name])))
    for name, known, expected_logs in logs:
        engine = maker.engine_of(known)
        if engine is None:
            continue
        for topic, expected in expected_logs.items():
            try:
                there = await engine.examine_topic(topic)
            except LogCorrupt as error:
                refused = refused or error
                logger.error("%(topic)s can't be opened: %(error)s", {"topic": name} | log_fields(error))
            else:
                if (there or there is None) and topic in (groups_log(name).topic, timing_topic(name)):
                    found.add(topic)
                if topics and there is not None:  # Without topics this is the first start.
                    _warn_of_missing(topic, sorted(set(range(expected)).difference(there)))
    if refused is not None:
        raise refused
    return found


def _refuse_former_groups(config: Config, maker: TopicMaker) -> None:
    """Refuse positions of groups as earlier versions stored them, for all topics together. Raises LogCorrupt."""
    disk = maker.env.disk
    for storage in config.storage:
        folder = f"{config.broker.data_dir}/{storage}/__groups"
        logs = [f"{folder}/{name}" for name in disk.list_dir(folder)] if disk.exists(folder) else []
        if any(name.endswith(".log") for log in logs for name in disk.list_dir(log)):
            text = f"{folder} has the positions of groups in the format of an earlier version"
            raise LogCorrupt(f"{text}, which this one can't read: delete it, and all groups begin anew")


def _logs_of(
    config: Config, maker: TopicMaker, name: str, settings: TopicSettings, entries: Mapping[str, SharedEntry]
) -> dict[str, int]:
    """The logs of a topic, including internal logs, with the expected number of partitions of each."""
    logs = {name: settings.partitions, groups_log(name).topic: 0} | {named(name): 0 for named in BESIDE}
    logs[index_topic(name)] = settings.partitions if settings.status_ms is not None else 0
    delivery = settings.delivery or config.broker.default_delivery
    keeps_state = delivery in config.delivery and maker.semantics(settings).survives_restart
    numbers = [entry.number for entry in entries.values() if not entry.deleted]
    for number in numbers if settings.kind == "stream" else [OWN_QUEUE, *numbers]:
        logs[state_topic(number, name)] = settings.partitions if keeps_state else 0
    return logs


def _warn_of_missing(topic: str, missing: list[int]) -> None:
    if not missing:
        return
    partitions = ", ".join(f"{topic}/{index}" for index in missing[:8]) + (", ..." if len(missing) > 8 else "")
    lost = "its records are"
    if is_state_topic(topic):
        lost = "its settlements are"
    elif topic.startswith(INDEX_TOPIC):
        lost = "the ids of its messages are"
    elif topic == TRANSACTIONS_TOPIC:
        lost = "the decisions of transactions that were not marked everywhere are"
    about = {"topic": topic, "partitions": partitions, "lost": lost}
    logger.warning("the folder of %(partitions)s is gone, and %(lost)s lost; it begins anew, empty", about)
