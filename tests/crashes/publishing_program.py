"""A program that publishes until it is killed: `publishing_program.py URL TOPIC FILE`. The file has what was confirmed.

No two values are alike, whichever of its processes has published them.
"""

from __future__ import annotations

import itertools
import sys
import uuid
from pathlib import Path

import trio

import linn
from linn.errors import LinnError


async def main() -> None:
    url, topic, file = sys.argv[1:]
    me = uuid.uuid4().hex
    numbers = itertools.count()
    with Path(file).open("a") as confirmed:
        while True:
            try:
                async with linn.connect(url, request_timeout_s=5) as client, client.producer(topic) as producer:
                    while True:
                        values = [f"{me}-{next(numbers)}" for _ in range(20)]
                        encoded = [value.encode() for value in values]
                        await producer.publish_many(encoded, keys=encoded)
                        confirmed.write("\n".join([*values, ""]))
                        confirmed.flush()
                        await trio.sleep(0.02)
            except* LinnError:
                await trio.sleep(0.1)


if __name__ == "__main__":
    trio.run(main)
