"""`linn init`: write a first configuration, which works as it is; its comments name the settings to change first."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.new_file import write_new
from linn.cli.options import Json
from linn.cli.render.console import print_result

File = Annotated[
    str,
    typer.Argument(metavar="[FILE]", help='File to write; "-" prints it. Default: linn.toml in this folder.'),
]
Kind = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help="Only one topic of this kind: queue, stream or both.")
]


def init(file: File = "linn.toml", kind: Kind = None, as_json: Json = False) -> None:
    """Write a configuration with comments, for `linn serve` to run and for you to change. Never overwrites a file."""
    if kind not in (None, "queue", "stream", "both"):
        raise typer.BadParameter("must be queue, stream or both", param_hint="--kind")
    text = initial_config(kind)
    if file == "-":
        print(text, end="")
        return
    write_new(file, text)
    print_result(
        {"file": file},
        f"wrote {file}; `linn check {file}` says what it means, `linn serve {file}` runs it",
        as_json=as_json,
    )


_BROKER = """\
# A broker. `linn check FILE` says what this file means; `linn serve FILE` runs it.
# Every key, with its default: docs/reference/configuration.md

[broker]
data_dir = "linn-data"              # all data; relative to the folder where `linn serve` is started
# message_bytes_max = "1MiB"        # the largest message; a topic may ask for less
# connections_max = 10_000

[listeners.native]
address = "127.0.0.1:5466"          # only this machine; others need TLS. "unix:linn.sock" works as well

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
max_deliveries = 5                  # a message is delivered at most this often,
dead_letter = "jobs.dead"           # and then goes here
"""

_DEAD = """
[topics."{topic}.dead"]                # a name with a dot is quoted
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
max_deliveries = 5
dead_letter = "changes.dead"
"""

_BINDING = """\
[[topics.{topic}.bindings]]
exchange = "orders"
key = "{key}"
"""


def initial_config(kind: str | None) -> str:
    """Return the TOML text: with one topic of a kind or, for None, with an exchange, a queue and a stream."""
    if kind == "queue":
        return _BROKER + _QUEUE + _DEAD.format(topic="jobs")
    if kind == "stream":
        return _BROKER + _STREAM
    if kind == "both":
        return _BROKER + _BOTH + _DEAD.format(topic="changes")
    jobs = _QUEUE + _BINDING.format(topic="jobs", key="*.paid")
    events = _STREAM + _BINDING.format(topic="events", key="#")
    return _BROKER + _EXCHANGE + jobs + _DEAD.format(topic="jobs") + events
