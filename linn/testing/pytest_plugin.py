"""The pytest plugin: fixtures `linn_broker`, `linn_brokers`, `linn_virtual` and `linn_crash`, and the marker `linn`.

Laws: it loads with every pytest of an environment that has linn, so it imports nothing of linn before a fixture is
used. It needs neither pytest-trio nor anyio's plugin, and awaits nothing before a test begins. A fixture ends
everything that it starts, even if the test fails.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from linn.testing.broker_thread import BrokerThread
    from linn.testing.crashable_broker import CrashableBroker
    from linn.testing.virtual_world import VirtualWorld

MARKER = (
    "linn(config=None, *, topics={}, exchanges={}, tls=False, roles={}, users={}, seed=0): what the linn fixtures of "
    "this test start with"
)
_SETTINGS = ("config", "topics", "exchanges", "tls", "roles", "users", "seed")
_SHOWN: pytest.StashKey[list[tuple[str, Callable[[], str]]]] = pytest.StashKey()
"""Reports about brokers for failed tests: titles, and functions that return the text."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add reports about brokers to a failed test."""
    report = yield
    if report.failed:
        report.sections += [(title, _written(write)) for title, write in item.stash.get(_SHOWN, ())]
    return report


def _written(write: Callable[[], str]) -> str:
    try:
        return write()
    except Exception as error:
        return f"it can't be asked any more: {error}"


def _show(request: pytest.FixtureRequest, title: str, write: Callable[[], str]) -> None:
    request.node.stash.setdefault(_SHOWN, []).append((title, write))


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the arguments of the nearest marker; a path is relative to the test's file."""
    marker = request.node.get_closest_marker("linn")
    if marker is None:
        return {}
    given: dict[str, Any] = dict(zip(_SETTINGS, marker.args, strict=False)) | marker.kwargs
    unknown = [name for name in given if name not in _SETTINGS]
    if unknown or len(marker.args) > 1:
        pytest.fail(f"@pytest.mark.linn does not take {', '.join(unknown) or marker.args[1:]}; {MARKER}", pytrace=False)
    if isinstance(given.get("config"), Path):
        given["config"] = request.path.parent / given["config"]
    return given


def _without_seed(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "seed"}


@pytest.fixture
def linn_broker(request: pytest.FixtureRequest, linn_brokers: Callable[..., BrokerThread]) -> BrokerThread:
    """A broker for one test, in memory; `linn_broker.url` is for trio, asyncio and blocking clients."""
    return linn_brokers(**_without_seed(_marked(request)))


@pytest.fixture
def linn_brokers(request: pytest.FixtureRequest) -> Iterator[Callable[..., BrokerThread]]:
    """A function that starts brokers: `linn_brokers(topics={...})`, as often as needed."""
    from linn.core.errors.tree import LinnError
    from linn.testing.broker_thread import BrokerThread

    if "autojump_clock" in request.fixturenames:
        pytest.fail("time would jump while linn_broker's thread is at work: use linn_virtual", pytrace=False)
    with ExitStack() as running:

        def start(config: str | Path | None = None, **settings: Any) -> BrokerThread:
            try:
                broker = running.enter_context(BrokerThread(config, **settings))
            except LinnError as error:
                pytest.fail(str(error), pytrace=False)
            _show(request, f"linn broker {broker.url}", broker.summary)
            return broker

        yield start


@pytest.fixture
def linn_virtual(request: pytest.FixtureRequest) -> Iterator[VirtualWorld]:
    """A broker and clients in virtual time: `async with linn_virtual`, or `linn_virtual.run(scenario)`."""
    from linn.testing.deterministic import deterministic_schedule
    from linn.testing.virtual_world import VirtualWorld

    world = VirtualWorld(**_marked(request))
    _show(request, f"linn's virtual world, seed {world.seed}", world.summary)
    with deterministic_schedule(world.seed):
        yield world


@pytest.fixture
def linn_crash(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CrashableBroker]:
    """`linn serve` in a process: `crash`, `kill` and `start`, `pause` and `resume`; its data is on the disk."""
    from linn.core.errors.tree import LinnError
    from linn.testing.crashable_broker import CrashableBroker

    folder = tmp_path / "linn"
    folder.mkdir()
    try:
        broker = CrashableBroker(folder, **_without_seed(_marked(request)))
        broker.start()
    except LinnError as error:
        pytest.fail(str(error), pytrace=False)
    _show(request, f"the log of linn serve, {broker.url}", broker.summary)
    try:
        yield broker
    finally:
        broker.kill()
