"""A worker: `python -m linn.cli.workers.worker ORDER`, below its supervisor.

Laws: it tells its supervisor once that it serves. It ends at once when its standard input ends, as it does when the
supervisor is killed: the folder must be free for the next one. Confirmed records are in the log.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import EntryPoint

import msgspec
import trio

from linn.cli.exit_code import ExitCode, boundary
from linn.cli.server.log import Log
from linn.cli.server.server import Server, end
from linn.cli.workers.crew import RELOAD, STATUS_VARIABLE, Ready
from linn.cli.workers.order import WorkerOrder, worker_config
from linn.core.broker.broker import Broker
from linn.core.env.real.process import RealProcess
from linn.core.plugins.manager import ENTRY_POINT_GROUP

_INPUT_BYTES = 4096


class Worker(Server):
    """One worker."""

    own_plugins = (EntryPoint("supervisor", "linn.cli.workers.store", ENTRY_POINT_GROUP),)

    def __init__(self, order: WorkerOrder, log: Log) -> None:
        """Read and check the configuration. Raises as `Server`."""
        super().__init__(order.file, data_dir=order.data_dir, listen=order.listen, log=log)
        self.config = worker_config(self.config, self.plugins, order, RealProcess().memory_bytes_max())

    async def announce(self, broker: Broker) -> None:
        """Tell the supervisor that clients can connect, and find the topics that this worker leads."""
        await broker.administration.wait_led()
        ready = msgspec.json.encode(Ready(dict(broker.addresses))) + b"\n"
        number = int(os.environ.pop(STATUS_VARIABLE))
        with open(number, "wb", buffering=0) as status:
            status.write(ready)

    async def follow_parent(self) -> None:
        """Carry out lines of standard input, and end at its end."""
        stdin, rest = sys.stdin.fileno(), b""
        while True:
            await trio.lowlevel.wait_readable(stdin)
            piece = os.read(stdin, _INPUT_BYTES)
            if not piece:
                end("the supervisor is gone; what was confirmed is kept", ExitCode.INTERRUPTED)
            *lines, rest = (rest + piece).split(b"\n")
            if RELOAD.encode() in lines:
                signal.raise_signal(signal.SIGHUP)


def main() -> None:
    """Run the worker that the first argument orders."""
    with boundary():
        order = msgspec.json.decode(sys.argv[1], type=WorkerOrder)
        log = Log(sys.stderr, level=order.level, format="json" if order.is_json else "human", worker=order.number)
        Worker(order, log).run(with_parent=True)


if __name__ == "__main__":
    main()
