"""A program that uses what the async client alone has, for mypy and for a broker: URL TOPIC LOOP."""

from __future__ import annotations

import sys
from typing import assert_type

import anyio

import linn
from linn.client import AnyEnv, ClientOptions, Message, Output


async def main(url: str, topic: str) -> None:
    async with linn.connect(url, env=AnyEnv()) as client:
        assert_type(client.options, ClientOptions)
        await client.admin.create_topic(topic)
        await client.admin.create_topic(f"{topic}-out")
        async with client.producer(topic) as producer:
            assert_type(producer.buffered_bytes, int)
            assert_type(producer.message_bytes_max, int)
            await producer.publish(b"1")

        async def double(message: Message) -> list[bytes | Output]:
            return [message.value or b"", Output(b"2", key=b"k", topic=f"{topic}-out")]

        with anyio.move_on_after(0.5):
            await client.process(topic, double, f"{topic}-out", name=topic, workers=2, prefetch=10, timeout_s=10)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], backend=sys.argv[3])
