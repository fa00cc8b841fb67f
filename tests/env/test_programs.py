"""The promises of `env.programs`, for real processes and for simulated ones, and what only real ones can break."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import trio
from trio.testing import MockClock

from linn.core.env.env import Env, Program
from linn.core.env.line_reader import CUT, LineReader
from linn.core.env.real.env import RealEnv
from linn.core.errors.tree import ProgramEnded, ProgramNotStarted
from linn.testing.sim_env import SimEnv
from linn.testing.sim_programs import SimProgram

ECHO = 'while read -r line; do echo "said $line"; echo "status $line" > /proc/self/fd/$STATUS_FD; done; exit 3'


async def _echo(program: SimProgram) -> int:
    while (line := await program.read_line()) is not None:
        await program.print(f"said {line}")
        await program.say_line(f"status {line}")
    return 3


@pytest.fixture(params=["real", "sim"])
def env(request: pytest.FixtureRequest) -> Env:
    if request.param == "real":
        return RealEnv()
    simulated = SimEnv(seed=7)
    simulated.programs.install("sh", _echo)
    return simulated


@pytest.fixture
def time(env: Env) -> MockClock:
    return MockClock(autojump_threshold=0) if isinstance(env, SimEnv) else MockClock(rate=1.0)


@asynccontextmanager
async def echo(env: Env) -> AsyncIterator[Program]:
    async with env.programs.run(["sh", "-c", ECHO], status_variable="STATUS_FD") as program:
        yield program


async def test_lines_go_in_and_come_out_and_the_exit_code_is_told(env: Env, time: MockClock) -> None:
    async with echo(env) as program:
        for word in ("one", "two"):
            await program.send_line(word)
            assert await program.receive_output() == f"said {word}"
            assert await program.receive_status() == f"status {word}"
        program.close_input()
        program.close_input()
        assert await program.wait() == 3
        assert await program.receive_output() is None
        assert await program.receive_status() is None


@pytest.mark.parametrize("how", ["kill", "terminate"])
async def test_a_signal_ends_it(env: Env, time: MockClock, how: str) -> None:
    async with echo(env) as program:
        getattr(program, how)()
        assert await program.wait() == -(signal.SIGKILL if how == "kill" else signal.SIGTERM)
        getattr(program, how)()


async def test_one_that_has_ended_takes_no_line(env: Env, time: MockClock) -> None:
    async with echo(env) as program:
        program.kill()
        await program.wait()
        with pytest.raises(ProgramEnded):
            await program.send_line("too late")


async def test_one_that_is_not_there_can_not_be_started(env: Env, time: MockClock) -> None:
    with pytest.raises(ProgramNotStarted, match="can't start no-such-program: No such file or directory"):
        async with env.programs.run(["no-such-program"], status_variable="STATUS_FD"):
            pass
    assert env.programs.find("no-such-program") is None
    assert (env.programs.find("sh") or "").endswith("/sh")


async def test_a_cancellation_ends_it_and_loses_no_line(env: Env, time: MockClock) -> None:
    async with echo(env) as program:
        with trio.move_on_after(0.01):
            await program.receive_output()
        await program.send_line("one")
        assert await program.receive_output() == "said one"
    with trio.CancelScope() as scope:
        async with echo(env):
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_an_error_of_the_block_is_raised_as_it_is(env: Env, time: MockClock) -> None:
    with pytest.raises(ZeroDivisionError):
        async with echo(env):
            raise ZeroDivisionError


# --- real processes --------------------------------------------------------------------------------------------------


@pytest.fixture
def descriptors() -> Callable[[], list[str]]:
    """The open descriptors of this process."""
    return lambda: sorted(os.listdir("/proc/self/fd"))


async def _wait_closed(fifo: int) -> None:
    """Wait until the last process that may write into a pipe is gone."""
    while True:
        await trio.lowlevel.wait_readable(fifo)
        if not os.read(fifo, 1024):
            return


@asynccontextmanager
async def family(tmp_path: Path, then: str) -> AsyncIterator[tuple[Program, int]]:
    """A program with a child that outlives it, unless somebody kills it; and a pipe that the child holds open."""
    os.mkfifo(tmp_path / "alive")
    fifo = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    script = f"sh -c 'echo up; exec sleep 1000' > {tmp_path}/alive & {then}"
    try:
        async with RealEnv().programs.run(["sh", "-c", script]) as program:
            await trio.lowlevel.wait_readable(fifo)
            assert os.read(fifo, 3) == b"up\n"
            yield program, fifo
        with trio.fail_after(30):
            await _wait_closed(fifo)
    finally:
        os.close(fifo)


@pytest.mark.parametrize("how", ["kill", "terminate", "leave", "cancel"])
async def test_its_children_go_with_it(tmp_path: Path, how: str) -> None:
    with trio.CancelScope() as scope:
        async with family(tmp_path, "wait") as (program, _):
            if how in ("kill", "terminate"):
                getattr(program, how)()
                await program.wait()
            elif how == "cancel":
                scope.cancel()


async def test_its_children_go_also_when_it_ends_by_itself(tmp_path: Path) -> None:
    async with family(tmp_path, "read -r line; exit 5") as (program, fifo):
        program.close_input()
        assert await program.wait() == 5
        with trio.fail_after(30):
            await _wait_closed(fifo)


async def test_nothing_is_left_behind(descriptors: Callable[[], list[str]]) -> None:
    env = RealEnv()

    async def every_way() -> None:
        async with echo(env) as program:
            await program.send_line("one")
            await program.receive_output()
        with trio.CancelScope() as scope:
            async with echo(env):
                scope.cancel()
                await trio.sleep_forever()
        with trio.move_on_after(0):
            async with echo(env):
                await trio.lowlevel.checkpoint()
        with pytest.raises(ProgramNotStarted):
            async with env.programs.run(["no-such-program"], status_variable="STATUS_FD"):
                pass
        with pytest.raises(ZeroDivisionError):
            async with echo(env):
                raise ZeroDivisionError

    await every_way()
    before = descriptors(), psutil.Process().children()
    await every_way()
    assert (descriptors(), psutil.Process().children()) == before, "a zombie is a child too"


async def test_it_has_a_session_of_its_own_and_only_the_descriptors_that_it_was_given() -> None:
    script = "ls /proc/self/fd | wc -l; ps -o sid= -p $$ 2>/dev/null || cut -d' ' -f6 /proc/$$/stat; echo $$; echo $X"
    command = ["sh", "-c", script]
    async with RealEnv().programs.run(command, environment={"X": "y"}, status_variable="STATUS_FD") as program:
        count, session, own, given = [await program.receive_output() for _ in range(4)]
    assert (count, given) == ("5", "y"), "three, the channel of status, and that of ls itself"
    assert (session or "").strip() == own
    assert int(own or 0) != os.getsid(0)


async def test_it_gets_the_listed_variables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"LC_TIME": "C", "TZ": "UTC", "LINN_PASSWORD": "secret", "AWS_KEY": "a", "AWS_REGION": "b", "AWSX": "c"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    async def variables(*inherits: str) -> set[str]:
        found = set()
        async with RealEnv().programs.run(["env"], inherits=inherits, environment={"X": "y"}) as program:
            while (line := await program.receive_output()) is not None:
                found.add(line)
        return {line for line in found if line.partition("=")[0] in (*given, "PATH", "X")}

    common = {f"PATH={os.environ['PATH']}", "LC_TIME=C", "TZ=UTC", "X=y"}
    assert await variables() == common
    assert await variables("AWS_*", "AWS") == common | {"AWS_KEY=a", "AWS_REGION=b"}


async def test_a_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = RealEnv().programs
    assert programs.find("sh", "SHELL_HOME") == programs.find("sh")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").write_text("")
    monkeypatch.setenv("SHELL_HOME", str(tmp_path))
    assert programs.find("sh", "SHELL_HOME") == programs.find("sh"), "it can't be run"
    (tmp_path / "bin" / "sh").chmod(0o755)
    assert programs.find("sh", "SHELL_HOME") == str(tmp_path / "bin" / "sh")


# --- lines -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 100])
async def test_lines_are_the_same_in_any_pieces(piece: int) -> None:
    text = "one\r\n\ntwo\n" + "x" * 20 + "\nüml\n" + "y" * 45 + "\nlast".replace("l", "\xe4")
    pieces = [text.encode()[at : at + piece] for at in range(0, len(text.encode()), piece)]

    async def receive(_: int) -> bytes:
        return pieces.pop(0) if pieces else b""

    lines, found = LineReader(receive, 16), []
    while (line := await lines.line()) is not None:
        found.append(line)
    assert found == ["one", "", "two", "x" * 16 + CUT, "üml", "y" * 16 + CUT, "äast"]
    assert await lines.line() is None
