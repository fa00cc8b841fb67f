from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

pytest_plugins = ["pytester"]

WITHOUT_LOOPS = ("-p", "no:trio", "-p", "no:anyio", "-p", "no:hypothesispytest")
TIMEOUT_S = 300


def run(pytester: pytest.Pytester, tests: str, *options: str) -> pytest.RunResult:
    """Run tests as a user does, in a process of its own, with warnings as errors."""
    pytester.makepyfile(tests)
    return pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider", *options, timeout=TIMEOUT_S)


def test_nothing_of_linn_is_loaded_unless_it_is_used(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import sys

        def test_a_test_of_something_else():
            loaded = [name for name in sys.modules if name.split(".")[0] in ("linn", "capnp")]
            assert sorted(loaded) == ["linn", "linn.testing", "linn.testing.pytest_plugin"]
            assert "trio" not in sys.modules
        """,
        *WITHOUT_LOOPS,
    )
    result.assert_outcomes(passed=1)


def test_it_can_be_turned_off(pytester: pytest.Pytester) -> None:
    tests = """
        import sys

        def test_a_test_of_something_else():
            assert "linn" not in sys.modules

        def test_a_broker(linn_broker):
            pass
        """
    result = run(pytester, tests, "-p", "no:linn")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*fixture 'linn_broker' not found*"])


def test_it_needs_no_other_plugin(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import asyncio

        import linn
        import linn.sync
        import pytest
        import trio

        pytestmark = pytest.mark.linn(topics={"orders": {"kind": "queue"}})

        async def publish(url):
            async with linn.connect(url) as client, client.producer("orders") as producer:
                await producer.publish(b"coffee")

        def test_all_worlds_at_once(linn_broker):
            asyncio.run(publish(linn_broker.url))
            trio.run(publish, linn_broker.url)
            with linn.sync.connect(linn_broker.url) as client, client.producer("orders") as producer:
                producer.publish(b"coffee")
            assert [message.value for message in linn_broker.records("orders")] == [b"coffee"] * 3

        def test_the_next_test_has_its_own(linn_broker):
            assert linn_broker.records("orders") == []

        def test_virtual_time(linn_virtual):
            async def scenario(world):
                await world.publish("orders", b"coffee")
                await world.advance(hours=1)
                return len(await world.records("orders"))

            assert linn_virtual.run(scenario) == 1

        def test_a_process(linn_crash):
            with linn.sync.connect(linn_crash.url) as client:
                assert client.describe("orders").topics[0].kind == "queue"
        """,
        "--strict-markers",
        *WITHOUT_LOOPS,
    )
    result.assert_outcomes(passed=4)


def test_the_marker_takes_text_a_file_beside_the_test_and_a_seed(pytester: pytest.Pytester) -> None:
    pytester.makefile(".toml", shop='[topics.orders]\nkind = "queue"\n')
    result = run(
        pytester,
        """
        from pathlib import Path

        import pytest

        @pytest.mark.linn(Path("shop.toml"), topics={"prices": {"kind": "stream"}})
        def test_a_file(linn_broker):
            assert (linn_broker.records("orders"), linn_broker.records("prices")) == ([], [])

        @pytest.mark.linn('[topics.orders]', seed=7)
        def test_text(linn_broker, linn_virtual):
            assert linn_broker.records("orders") == []
            assert linn_virtual.seed == 7

        def test_several(linn_brokers):
            one, other = linn_brokers(topics={"a": {}}), linn_brokers("[topics.a]")
            one.publish("a", b"1")
            assert (len(one.records("a")), len(other.records("a"))) == (1, 0)
        """,
        *WITHOUT_LOOPS,
    )
    result.assert_outcomes(passed=3)


def test_errors_are_one_line(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        @pytest.mark.linn(topcs={})
        def test_one(linn_broker):
            pass

        @pytest.mark.linn(topics={"orders": {"knd": "queue"}})
        def test_two(linn_broker):
            pass

        @pytest.mark.linn('[topics.a]\\nstorage = "nowhere"')
        def test_three(linn_crash):
            pass

        @pytest.mark.linn(topics={"orders": {"knd": "queue"}})
        def test_four(linn_virtual):
            async def scenario(world):
                pass

            linn_virtual.run(scenario)

        @pytest.fixture
        def autojump_clock():
            return None

        def test_five(linn_broker, autojump_clock):
            pass
        """,
        *WITHOUT_LOOPS,
    )
    result.assert_outcomes(errors=4, failed=1)
    result.stdout.fnmatch_lines(
        [
            "@pytest.mark.linn does not take topcs; linn(config=None, *, topics*",
            "the test's configuration:3: topics.orders.knd: *",
            "*nowhere*",
            "time would jump while linn_broker's thread is at work: use linn_virtual",
        ]
    )


def test_a_failure_shows_the_broker(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest

        pytestmark = pytest.mark.linn(topics={"orders": {"kind": "queue"}})

        def test_thread(linn_broker):
            linn_broker.publish("orders", b"coffee")
            assert linn_broker.records("orders") == []

        def test_world(linn_virtual):
            async def scenario(world):
                assert await world.records("orders") == [1]

            linn_virtual.run(scenario)

        def test_process(linn_crash):
            linn_crash.kill()
            assert False
        """,
        *WITHOUT_LOOPS,
    )
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "*- linn broker linn://127.0.0.1:* -*",
            "orders (queue): 1 published, 1 kept, 1 unsettled, 0 leased, 0 dead letters, 0 consumers",
            "*- linn's virtual world, seed 0 -*",
            "*- the log of linn serve, linn://127.0.0.1:* -*",
        ]
    )


def test_a_broker_that_dies_fails_its_test_and_no_other(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        import trio

        from linn.core.errors.tree import ConnectionLost, SyncFailed

        pytestmark = pytest.mark.linn(topics={"orders": {"kind": "queue"}})

        async def die(broker):
            broker.fail(SyncFailed("the disk is on fire"))
            await trio.sleep_forever()

        def test_one(linn_broker):
            with pytest.raises(ConnectionLost):
                linn_broker.call(die)

        def test_two(linn_broker):
            assert linn_broker.records("orders") == []
        """,
        *WITHOUT_LOOPS,
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*SyncFailed: the disk is on fire*"])


def test_no_process_is_left_of_a_test_that_failed_or_was_killed(pytester: pytest.Pytester) -> None:
    tests = """
        import os
        from pathlib import Path

        def test_failing(linn_crash):
            Path("pids").open("a").write(f"{linn_crash.pid}\\n")
            linn_crash.pause()
            raise ValueError

        def test_killed(linn_crash):
            Path("pids").open("a").write(f"{linn_crash.pid}\\n")
            os._exit(3)
        """
    assert run(pytester, tests, *WITHOUT_LOOPS).ret == 3
    pids = [int(line) for line in (pytester.path / "pids").read_text().split()]
    assert len(pids) == 2
    running = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(running, timeout=300)
    assert alive == []


def test_runs_beside_one_another_do_not_meet(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import linn.sync
        import pytest

        @pytest.mark.linn(topics={"orders": {"kind": "queue", "storage": "segmented-log"}})
        @pytest.mark.parametrize("number", range(3))
        def test_one_of_many(linn_broker, number):
            with linn.sync.connect(linn_broker.url) as client, client.producer("orders") as producer:
                producer.publish(b"%d" % number)
            assert [message.value for message in linn_broker.records("orders")] == [b"%d" % number]
        """
    )
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *WITHOUT_LOOPS]
    runs = [
        subprocess.Popen(
            [*command, f"--basetemp={pytester.path}/base{number}"],
            cwd=pytester.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    outputs = [each.communicate(timeout=TIMEOUT_S)[0] for each in runs]
    assert [each.returncode for each in runs] == [0, 0], "\n".join(outputs)


def test_a_client_that_nobody_closes_does_not_keep_the_run_from_ending(pytester: pytest.Pytester) -> None:
    tests = """
        import linn.sync
        import pytest

        @pytest.mark.linn(topics={"orders": {"kind": "queue"}})
        def test_forgetful(linn_broker):
            global client, consumer
            client = linn.sync.connect(linn_broker.url)
            consumer = client.consumer("orders")
        """
    result = run(pytester, tests, *WITHOUT_LOOPS)
    result.assert_outcomes(passed=1)
    assert result.duration < TIMEOUT_S / 2
