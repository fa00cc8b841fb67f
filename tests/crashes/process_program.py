"""A program that reads, processes and writes until it is killed: `process_program.py URL NAME SOURCE SINK [GROUP]`."""

from __future__ import annotations

import sys

import trio

import linn
from linn.client import Message, Output
from linn.errors import LinnError


def made(message: Message) -> Output:
    return Output(b"made of " + (message.value or b""), key=message.value)


async def main() -> None:
    url, name, source, sink, *group = sys.argv[1:]
    while True:
        try:
            async with linn.connect(url, request_timeout_s=5) as client:
                await client.process(
                    source, made, sink, name=name, group=group[0] if group else None, workers=2, prefetch=50
                )
        except* LinnError:
            await trio.sleep(0.1)


if __name__ == "__main__":
    trio.run(main)
