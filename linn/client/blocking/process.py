"""Process of the blocking client: each worker reads, processes and writes in a thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from linn.client.blocking.consumer import ConsumerEnded
from linn.client.blocking.generated.worker import Worker
from linn.core.errors.tree import ClientClosed, LinnError


def run_all(workers: Sequence[Worker]) -> None:
    """Run workers, the first in this thread, and close all of them when one ends. Raises the first worker's error."""
    errors: list[BaseException] = []

    def run(worker: Worker) -> None:
        try:
            with suppress(ConsumerEnded):
                worker.run()
        except BaseException as error:
            errors.append(error)
        finally:
            for other in workers:
                try:
                    other.consumer.close()
                except LinnError as error:
                    if not isinstance(error, ClientClosed):
                        errors.append(error)

    threads = [threading.Thread(target=run, args=(worker,), name="linn-worker") for worker in workers[1:]]
    for thread in threads:
        thread.start()
    run(workers[0])
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
