"""A worker that replies to requests, in a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import linn.sync


@contextmanager
def replying(url: str, topic: str) -> Iterator[None]:
    """Reply to each request in a topic with its value, until the end of the block."""
    with linn.sync.connect(url) as client:
        with client.consumer(topic) as consumer:

            def work() -> None:
                for message in consumer:
                    message.reply(message.value)
                    message.ack()

            thread = threading.Thread(target=work)
            thread.start()
            yield
        thread.join()
