"""The configuration that `linn init` writes: it serves at once, and its comments say what to change first."""

from __future__ import annotations

from linn.core.config.problem import one_line
from linn.core.errors.tree import ConfigExists, ConfigUnreadable

_BROKER = """\
# A broker. `linn check FILE` says what this file means; `linn serve FILE` runs it.
# Every key, with its default: docs/reference/configuration.md

[broker]
data_dir = "linn-data"              # all that is kept; a path from where `linn serve` is started
# message_bytes_max = "1MiB"        # the largest message; a topic may ask for less
# connections_max = 10_000

[listeners.native]
address = "127.0.0.1:5466"          # only this machine: there is no login yet. "unix:linn.sock" works as well

# What a power failure may take. "os": what the operating system had not written yet, a few seconds; "interval": the
# last flush_interval; "always": nothing that was confirmed, at the price of a sync per group of publishes.
[storage.segmented-log]
fsync = "os"
"""

_EXCHANGE = """
# An exchange sends a message to every topic that a binding leads to. type: direct (the key is equal), fanout (always),
# topic (words between dots; * is one word, # any number). `linn publish --exchange orders --routing-key eu.paid hello`
[exchanges.orders]
type = "topic"
"""

_QUEUE = """
# A queue: workers compete for messages; each is gone when one of them has acked it.
[topics.jobs]
kind = "queue"
lease = "30s"                       # a worker that has not acked by then loses the message to another one
max_deliveries = 5                  # so often at most,
dead_letter = "jobs.dead"           # and then it goes here
"""

_DEAD = """
[topics."jobs.dead"]                # a name with a dot is quoted
kind = "queue"
"""

_STREAM = """
# A stream: messages are kept for a time or a size; any number of groups read it, each at its own place.
[topics.events]
kind = "stream"
partitions = 4                      # as many members of a group can read at a time; may grow later, never shrink
retention = "14d"
# retention_bytes = "10GiB"         # of each partition, oldest dropped first
"""

_BOTH = """
# Both: a stream that workers compete for as well.
[topics.changes]
kind = "both"
retention = "14d"
lease = "30s"
"""

_BINDING = """\
[[topics.{topic}.bindings]]
exchange = "orders"
key = "{key}"
"""


def initial_config(kind: str | None) -> str:
    """The TOML text: with one topic of a kind, or, for None, with an exchange, a queue and a stream."""
    if kind == "queue":
        return _BROKER + _QUEUE + _DEAD
    if kind == "stream":
        return _BROKER + _STREAM
    if kind == "both":
        return _BROKER + _BOTH
    jobs = _QUEUE + _BINDING.format(topic="jobs", key="*.paid")
    events = _STREAM + _BINDING.format(topic="events", key="#")
    return _BROKER + _EXCHANGE + jobs + _DEAD + events


def write_new(file: str, text: str) -> None:
    """Write a file that is not there yet. Raises ConfigExists, ConfigUnreadable."""
    try:
        with open(file, "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError as error:
        raise ConfigExists(f"{one_line(file)} is there already, and was not touched") from error
    except (OSError, ValueError) as error:
        raise ConfigUnreadable(f"{one_line(file)}: can't be written: {getattr(error, 'strerror', error)}") from error
