from __future__ import annotations

import anyio
import pytest
from both_loops import on_both_clients, on_both_loops

from linn.client import Client
from linn.client.consume.processing import reason_of
from linn.core.errors.tree import DeliveryNotCurrent, MessageInvalid


@on_both_clients
async def test_processing_settles_by_how_the_block_ends(client: Client, name: str) -> None:
    await client.admin.create_topic(f"{name}-dead")
    await client.admin.create_topic(name, dead_letter=f"{name}-dead")
    async with client.producer(name) as producer:
        await producer.publish_many([b"0", b"1", b"2", b"3"])
    async with client.consumer(name) as consumer:
        messages = [await anext(consumer) for _ in range(4)]
        async with messages[0].process() as message:
            assert message.value == b"0"
        with pytest.raises(ZeroDivisionError):
            async with messages[1].process(delay_ms=1):
                raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError):
            async with messages[2].process(on_error="reject"):
                raise ZeroDivisionError
        with pytest.raises(KeyboardInterrupt):
            async with messages[3].process():
                raise KeyboardInterrupt
        with pytest.raises(MessageInvalid):
            messages[3].process(on_error="drop")  # type: ignore[arg-type]
        again = await anext(consumer)
        assert (again.value, again.attempt) == (b"1", 2)
        with pytest.raises(DeliveryNotCurrent):
            async with messages[0].process():
                pass
        async with again.batch.process():
            pass
    async with client.consumer(name) as consumer, client.consumer(f"{name}-dead") as dead:
        assert (await anext(consumer)).value == b"3"
        assert (await anext(dead)).value == b"2"


@on_both_loops
async def test_a_block_that_is_cancelled_settles_nothing(client: Client, name: str) -> None:
    await client.admin.create_topic(name)
    async with client.producer(name) as producer:
        await producer.publish(b"0")
    async with client.consumer(name) as consumer:
        message = await anext(consumer)
        with anyio.move_on_after(0.01):
            async with message.process():
                await anyio.sleep_forever()
        await message.ack()


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("can't be read\nat all"), "ValueError: can't be read"),
        (KeyError("x"), "KeyError: 'x'"),
        (ValueError("\n \n"), "ValueError"),
        (ValueError(), "ValueError"),
        (Odd(), "Odd"),
        (ExceptionGroup("two", [ValueError()]), "ExceptionGroup: two (1 sub-exception)"),
    ],
)
def test_the_reason_of_an_exception_is_its_type_and_first_line(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


@on_both_clients
async def test_dead_letters_say_why(client: Client, name: str) -> None:
    await client.admin.create_topic(f"{name}-dead")
    await client.admin.create_topic(name, dead_letter=f"{name}-dead", max_deliveries=1)
    async with client.producer(name) as producer:
        await producer.publish_many([b"%d" % number for number in range(6)])
    async with client.consumer(name, prefetch=6) as consumer:
        messages = [await anext(consumer) for _ in range(6)]
        messages[0].reject("no currency")
        messages[1].reject("no currency")
        messages[2].reject()
        messages[3].nack(reason="x\n" * 1_000)
        for message, on_error in ((messages[4], "nack"), (messages[5], "reject")):
            with pytest.raises(ZeroDivisionError):
                async with message.process(on_error=on_error):  # type: ignore[arg-type]
                    raise ZeroDivisionError("by zero")
        for wrong in (b"bytes", None, 1):
            with pytest.raises(MessageInvalid, match="a reason must be text"):
                messages[0].reject(wrong)  # type: ignore[arg-type]
    async with client.consumer(f"{name}-dead") as dead:
        letters = sorted([await anext(dead) for _ in range(6)], key=lambda letter: letter.value or b"")
        assert [letter.labels.get("linn.dead.error") for letter in letters] == [
            *("no currency", "no currency", None, "x " * 127 + "x"),
            *("ZeroDivisionError: by zero",) * 2,
        ]
