"""Loop of `linn top`: read the broker's metrics, show them, and wait.

Laws: the command fails if it can't reach the broker at first, and waits for a broker that goes away later. The terminal
is restored when the command ends, however it ends.

Separate from the command because nearly every function needs trio, which the command has to load without.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator

import trio
from rich.live import Live

import linn
from linn.cli.render.console import console, print_json
from linn.cli.render.top_screen import screen
from linn.cli.render.top_view import NAMES, Reading, View, view_of
from linn.cli.session import RETRIES_MAX, broker_address, login_of, mute_client, tls_of
from linn.client.client import Client
from linn.core.errors.tree import BrokerStopping, ConnectionLost, RequestTimeout, RequestUnknown

_KEYS_BYTES = 64
_KEYS_S = 0.05
_UNREACHABLE = (ConnectionLost, RequestTimeout, BrokerStopping)

Show = Callable[[View], None]


def watch(url: str, *, interval_s: float, once: bool, as_json: bool) -> None:
    """Show a broker until stopped. Raises BadParameter, LinnError; KeyboardInterrupt as usual."""
    broker_address(url)
    mute_client()
    if once:
        view = trio.run(_second_view, url, interval_s)
        print_json(view.data()) if as_json else _print_tables(view)
    elif as_json:
        trio.run(Follower(url, interval_s, _print_line).run)
    elif console().is_terminal:
        _watch_on_terminal(url, interval_s)
    else:
        trio.run(Follower(url, interval_s, _print_tables).run)


def _connect(url: str) -> contextlib.AbstractAsyncContextManager[Client]:
    return linn.connect(url, name="linn-top", retries_max=RETRIES_MAX, tls=tls_of(url), login=login_of())


async def _second_view(url: str, interval_s: float) -> View:
    """Return the first view that has rates."""
    async with _connect(url) as client:
        before = await _read(client)
        await trio.sleep(interval_s)
        return view_of(await _read(client), before)


async def _read(client: Client) -> Reading:
    try:
        report = await client.admin.metrics(*NAMES)
    except RequestUnknown as error:
        error.text += "; the broker is older than this command"
        raise
    return Reading(trio.current_time(), report)


def _print_line(view: View) -> None:
    print(json.dumps(view.data()), flush=True)


def _print_tables(view: View) -> None:
    console().print(screen(view, console().width))


def _watch_on_terminal(url: str, interval_s: float) -> None:
    with _keys(sys.stdin.fileno()) as keys, Live(console=console(), screen=True, auto_refresh=False) as live:

        def show(view: View) -> None:
            live.update(screen(view, console().width, console().height), refresh=True)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Follower(url, interval_s, show).run)
                if keys is not None:
                    await _until_q(keys)
                    nursery.cancel_scope.cancel()

        trio.run(main)


@contextlib.contextmanager
def _keys(stdin: int) -> Iterator[int | None]:
    """Yield the descriptor of a terminal that delivers keys without Enter; None where stdin is no terminal.

    A read never waits, as Ctrl-C may discard the keys between the moment that the terminal is readable and the read.
    """
    if not os.isatty(stdin):
        yield None
        return
    before = termios.tcgetattr(stdin)
    try:
        tty.setcbreak(stdin)
        mode = termios.tcgetattr(stdin)
        mode[6][termios.VMIN] = 0
        termios.tcsetattr(stdin, termios.TCSANOW, mode)
        yield stdin
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


async def _until_q(keys: int) -> None:
    while True:
        await trio.lowlevel.wait_readable(keys)
        if b"q" in os.read(keys, _KEYS_BYTES).lower():
            return
        await trio.sleep(_KEYS_S)  # A terminal that has hung up is readable at once, until drawing fails.


class Follower:
    """Loop that shows one view per interval; while the broker is away, the last one with the reason."""

    def __init__(self, url: str, interval_s: float, show: Show) -> None:
        self._url = url
        self._interval_s = interval_s
        self._show = show
        self._last: View | None = None

    async def run(self) -> None:
        """Run until cancelled. Raises LinnError where the first reading fails, or another version answers."""
        while True:
            try:
                async with _connect(self._url) as client:
                    await self._follow(client)
            except _UNREACHABLE as error:
                if self._last is None:
                    raise
                self._show(dataclasses.replace(self._last, trouble=f"{error}: trying again"))
                await trio.sleep(self._interval_s)

    async def _follow(self, client: Client) -> None:
        before: Reading | None = None
        while True:
            now = await _read(client)
            self._last = view_of(now, before)
            self._show(self._last)
            before = now
            await trio.sleep(self._interval_s)
