from __future__ import annotations

import anyio
import pytest
from both_loops import on_both_loops

import linn
from linn.core.errors.tree import DeliveryNotCurrent, MessageInvalid


@on_both_loops
async def test_processing_settles_by_how_the_block_ends(broker: str, name: str) -> None:
    async with linn.connect(broker) as client:
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
            with anyio.move_on_after(0.01):
                async with messages[3].process():
                    await anyio.sleep_forever()
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
