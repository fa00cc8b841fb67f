"""`linn init`: write a first configuration, which works as it is; its comments name the settings to change first."""

from __future__ import annotations

import json
import os
import socket
from typing import Annotated

import typer

from linn.cli.new_file import write_new
from linn.cli.options import Json
from linn.cli.render.console import print_result
from linn.core.errors.texts import one_line
from linn.core.errors.tree import ConfigExists

File = Annotated[
    str,
    typer.Argument(metavar="[FILE]", help='File to write; "-" prints it. Default: linn.toml in this folder.'),
]
Kind = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help="Only one topic of this kind: queue, stream or both.")
]


Secure = Annotated[
    bool,
    typer.Option(
        "--secure",
        help="Other machines may connect, with TLS and a login; writes a certificate beside the file. "
        "The first administrator is made over a Unix socket.",
    ),
]
Host = Annotated[
    list[str] | None,
    typer.Option(
        "--host", metavar="NAME", help="With --secure, a name or address of this machine. Default: its own name."
    ),
]


def init(
    file: File = "linn.toml", kind: Kind = None, secure: Secure = False, host: Host = None, as_json: Json = False
) -> None:
    """Write a configuration with comments, for `linn serve` to run and for you to change. Never overwrites a file."""
    if kind not in (None, "queue", "stream", "both"):
        raise typer.BadParameter("must be queue, stream or both", param_hint="--kind")
    text = initial_config(kind)
    if secure:
        _init_secure(file, text, host or [socket.gethostname()], as_json=as_json)
        return
    if host:
        raise typer.BadParameter("goes with --secure", param_hint="--host")
    if file == "-":
        print(text, end="")
        return
    write_new(file, text)
    print_result(
        {"file": file},
        f"wrote {file}; `linn check {file}` says what it means, `linn serve {file}` runs it",
        as_json=as_json,
    )


def _init_secure(file: str, text: str, hosts: list[str], *, as_json: bool) -> None:
    """Write a configuration with TLS and logins, and its certificate. Raises ConfigError, ConfigExists."""
    from linn.cli.new_certificate import new_certificate

    if file == "-":
        raise typer.BadParameter("--secure writes files: name one", param_hint="FILE")
    made = new_certificate([*hosts, "localhost", "127.0.0.1", "::1"])
    stem = file.removesuffix(".toml")
    names = {"authority": f"{stem}-ca.pem", "certificate": f"{stem}-cert.pem", "key": f"{stem}-key.pem"}
    for name in (file, *names.values()):
        if os.path.exists(name):
            raise ConfigExists(f"{one_line(name)} exists already, and nothing was changed")
    listener = _SECURE.format(**{kind: json.dumps(name) for kind, name in names.items()})
    write_new(names["key"], made.key, mode=0o600)
    write_new(names["certificate"], made.certificate)
    write_new(names["authority"], made.authority)
    write_new(file, text.replace(_OPEN, listener))
    said = _NEXT.format(file=file, host=hosts[0], folder=os.getcwd(), **names)
    print_result({"file": file, **names}, said, as_json=as_json)


_OPEN = """\
[listeners.native]
address = "127.0.0.1:5466"          # only this machine; others need TLS. "unix:linn.sock" works as well
"""

_SECURE = """\
# Clients on any machine, with TLS and a login. They trust {authority}.
[listeners.native]
address = "0.0.0.0:5466"
tls = "own"
login = "required"

# Users of this machine. A process of the user who runs the broker is the user "administrator".
[listeners.local]
address = "unix:linn.sock"
login = "required"
methods = ["peer"]

[tls.own]
certificate = {certificate}
key = {key}
"""

_NEXT = """\
wrote {file}, {certificate}, {key}, and for clients {authority}. Then:
  linn serve {file}
  linn users create NAME --role administrator --password --url linn+unix://{folder}/linn.sock
  linn whoami --url linns://{host}:5466 --ca {authority} --user NAME"""

_BROKER = (
    """\
# A broker. `linn check FILE` says what this file means; `linn serve FILE` runs it.
# Every key, with its default: docs/reference/configuration.md

[broker]
data_dir = "linn-data"              # all data; relative to the folder where `linn serve` is started
# message_bytes_max = "1MiB"        # the largest message; a topic may ask for less
# connections_max = 10_000

"""
    + _OPEN
    + """
# What a power failure may take. "os": what the operating system had not written yet, a few seconds; "interval": the
# last flush_interval; "always": nothing that was confirmed, at the price of a sync per group of publishes.
[storage.segmented-log]
fsync = "os"
"""
)

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
