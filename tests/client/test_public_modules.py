"""The names that `linn`, `linn.client`, `linn.sync` and `linn.errors` show, in an editor and to `dir`."""

from __future__ import annotations

import subprocess
import sys

from both_loops import on_both_loops

import linn
import linn.cli.main  # Submodules that are loaded are not shown either.
from linn.core.errors.codes import all_errors, error_from_code
from linn.core.errors.tree import LinnError
from linn.participants import SqliteParticipant
from linn.testing.process import BrokerNotReady


def test_dir_shows_the_public_names_only() -> None:
    classes = ["Client", "Consumer", "Message", "Password", "Producer", "Tls", "Token"]
    rest = ["__version__", "client", "connect", "descriptions", "errors", "participants", "sync"]
    assert dir(linn) == [*classes, *rest]
    assert [getattr(linn, name) for name in classes] == [getattr(linn.client, name) for name in classes]
    assert dir(linn.client) == sorted(linn.client.__all__)
    for name in dir(linn):
        assert getattr(linn, name) is not None
    assert dir(linn.sync) == sorted(linn.sync.__all__)


def test_linn_errors_has_every_error_of_linn() -> None:
    classes = {error for error in all_errors().values() if error.__module__ == "linn.errors"}
    assert LinnError in classes
    assert {error.__name__ for error in classes} == set(dir(linn.errors))
    assert all(getattr(linn.errors, error.__name__) is error for error in classes)
    assert [error.__name__ for error in classes if error.__doc__ is None] == []


def test_an_error_of_a_program_is_shown_as_what_the_program_catches() -> None:
    assert repr(type(error_from_code("topic.unknown", "no such topic"))) == "<class 'linn.errors.TopicUnknown'>"
    assert BrokerNotReady.__module__ == "linn.testing.process"


def test_importing_linn_loads_no_client() -> None:
    script = "import sys, linn; print([name for name in sys.modules if name.startswith(('linn.', 'anyio', 'trio'))])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "[]"


def shown(thing: object) -> list[str]:
    """The names that an editor completes after a dot."""
    return [name for name in dir(thing) if not name.startswith("_")]


CLIENT = (
    "admin broker cancel_scheduled consumer describe env fetch find_offset move_scheduled options process producer"
    " reply request request_many scheduled shared_transactions status transaction user"
)
PRODUCER = "aclose buffered_bytes flush id message_bytes_max publish publish_many publish_nowait"
CONSUMER = "aclose batches commit is_active next_batch partitions pause paused pull resume run seek topics wait_active"
EXACTLY_ONCE = "aclose commit run topics"
BATCH = "ack attempt end_offset extend leader_epoch nack partition process records reject start_offset topic values"
MESSAGE = (
    "ack attempt batch extend headers id index key labels leader_epoch nack offset partition priority process record"
    " reject reply reply_to routing_key text timestamp_ms topic value"
)


@on_both_loops
async def test_objects_of_a_client_have_the_names_on_the_page(client: linn.client.Client, name: str) -> None:
    await client.admin.create_topic(name)
    async with client.producer(name) as producer, client.consumer(name) as consumer:
        await producer.publish(b"1")
        message = await anext(consumer)
        assert shown(client) == CLIENT.split()
        assert shown(producer) == PRODUCER.split()
        assert shown(consumer) == CONSUMER.split()
        assert shown(message) == MESSAGE.split()
        assert shown(message.batch) == BATCH.split()
    assert shown(client.consumer(name, name="ann", exactly_once=SqliteParticipant(":memory:"))) == EXACTLY_ONCE.split()
