"""Security lines: what rights cost a publish, and what logins cost the broker and the publishers beside them."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import trio

import linn
from benchmarks.latency import timed_publishes
from benchmarks.line import Bound, Line, Pair, line_of_pairs
from benchmarks.load import LoadFailed, Target, cargo, cpu_s, publish
from benchmarks.plan import Plan
from benchmarks.servers import CONFIG, broker, fresh_folder, set_apart, share_processors, target_of
from linn.core.errors.tree import LinnError
from linn.core.security.sasl.scram import NONCE_BYTES, SCRAM, ScramClient, ScramServer, make_verifier, salt_password
from linn.testing.certificates import AUTHORITY, tls_table
from linn.testing.process import BrokerProcess

RIGHTS_OF_100, RIGHTS_OF_ONE = Bound(0.99), Bound(0.97)
SCRAM_US = Bound(60, at_most=True)
LOGIN_US = Bound(2_000, at_most=True)
"""A hundred a second take a fifth of a processor."""
SINGLE_CALLS = 100
SECONDS_MAX = 120.0
LOGIN = linn.Password("ann", "opensesame")
ROLES = """
[roles.bench]
"topic:*" = ["see", "publish", "consume"]
"topic:others.*" = ["see"]
[users.anonymous]
roles = ["bench"]
"""
LISTENERS = """
[broker]
connections_max = 20_000
[listeners.plain]
address = "127.0.0.1:0"
[listeners.login]
address = "127.0.0.1:0"
login = "required"
[listeners.secure]
address = "127.0.0.1:0"
login = "required"
tls = "bench"
[tls.bench]
certificate = "{certificate}"
key = "{key}"
[users.ann]
roles = ["bench"]
scram = "{scram}"
"""


def security_lines(plan: Plan) -> Iterator[Line]:
    """All lines, one by one."""
    yield from _rights(plan)
    with fresh_folder(plan.folder) as folder:
        scram = make_verifier("opensesame", bytes(16)).text()
        config = CONFIG + ROLES + LISTENERS.format(scram=scram, **tls_table(folder, "127.0.0.1"))
        with BrokerProcess(folder, config, listen=()) as process:
            set_apart(process.pid)
            plain, login, secure = process.urls
            yield _scram(plan)
            authority = folder / AUTHORITY
            yield from _logins(plan, process.pid, plain, login, secure, authority)
            yield _return(plan, plain, secure, authority)


# --- rights ----------------------------------------------------------------------------------------------------------


def _rights(plan: Plan) -> Iterator[Line]:
    """The same publishes to a broker without roles and to one with, as rates by the broker's CPU time."""
    with fresh_folder(plan.folder) as one, fresh_folder(plan.folder) as other:
        with broker(one) as free, broker(other, CONFIG + ROLES) as ruled:
            targets = target_of(free), target_of(ruled)
            for name, batch_kib, bound in (("100 records", 13, RIGHTS_OF_100), ("one record", 0, RIGHTS_OF_ONE)):
                goods = cargo("ring", batch_kib)
                bytes_min = plan.publish_bytes // 4 if batch_kib else plan.single_calls * 20 * goods.batch_bytes

                def per_cpu_s(target: Target) -> float:
                    run = trio.run(publish, target, goods, bytes_min)  # noqa: B023
                    return run.batches / run.cpu_s

                for target in targets:
                    per_cpu_s(target)
                pairs = []
                for number in range(plan.idempotence_rounds):
                    second_first = number % 2 == 1
                    figures = [per_cpu_s(target) for target in (targets[::-1] if second_first else targets)]
                    pairs.append(Pair(*(figures[::-1] if second_first else figures)))
                yield line_of_pairs("security", f"publish of {name}, with rights", bound, pairs, "1/s of CPU")


# --- logins ----------------------------------------------------------------------------------------------------------


def _scram(plan: Plan) -> Line:
    """The broker's computation for one login with a password, in the benchmark's own process."""
    verifier, nonce = make_verifier("opensesame", bytes(16)), bytes(NONCE_BYTES)
    salted = salt_password("opensesame", verifier.salt, verifier.iterations)

    def taken_us() -> float:
        taken_s = 0.0
        for _ in range(plan.single_calls):
            client = ScramClient("ann", nonce, [SCRAM])
            server = ScramServer(lambda _: verifier, b"secret", nonce, plus=False)
            first = client.first()
            began = time.thread_time()
            answer = server.step(first).data
            taken_s += time.thread_time() - began
            client.salting(answer)
            final = client.final(salted)
            began = time.thread_time()
            client.check(server.step(final).data)
            taken_s += time.thread_time() - began
        return taken_s / plan.single_calls * 1e6

    return Line("security", "SCRAM, the broker's side", "us", SCRAM_US, [taken_us() for _ in range(plan.rounds)])


def _logins(plan: Plan, pid: int, plain: str, login: str, secure: str, authority: Path) -> Iterator[Line]:
    """Compare what a connection costs the broker with a login and without; and with TLS, whose handshake is in it."""

    def cpu_us(url: str) -> float:
        before = cpu_s(pid)
        trio.run(_connect, url, authority, plan.single_calls)
        return (cpu_s(pid) - before) / plan.single_calls * 1e6

    cpu_us(secure)
    rounds = [[cpu_us(url) for url in (plain, login, secure)] for _ in range(plan.rounds)]
    pairs = [Pair(without, with_login) for without, with_login, _ in rounds]
    yield line_of_pairs("security", "connection with a login, CPU of the broker", None, pairs, "us")
    in_tls = [in_tls for _, _, in_tls in rounds]
    yield Line("security", "connection with a login in TLS, CPU of the broker", "us", LOGIN_US, in_tls)


async def _connect(url: str, authority: Path, count: int) -> None:
    tls = linn.Tls(ca=authority) if url.startswith("linns:") else None
    for _ in range(count):
        async with linn.connect(url, login=LOGIN, tls=tls):  # Which a listener without a login does not ask for.
            pass


def _return(plan: Plan, plain: str, secure: str, authority: Path) -> Line:
    """The slowest of a hundred single publishes, while many clients log in at once and alone."""
    pairs = []
    for _ in range(max(1, plan.rounds // 3)):
        alone = trio.run(_slowest_ms, plain)
        with _clients(secure, authority, plan.returning_clients) as process:
            found: list[float] = []
            while not found or process.poll() is None:
                found.append(trio.run(_slowest_ms, plain))
        pairs.append(Pair(alone, median(found)))
    name = f"slowest of {SINGLE_CALLS} publishes while {plan.returning_clients:,} log in at once in TLS"
    return line_of_pairs("security", name, None, pairs, "ms")


async def _slowest_ms(url: str) -> float:
    async with linn.connect(url) as client:
        return max(await timed_publishes(client, "ring", SINGLE_CALLS)) * 1e3


# --- clients in a process of their own -------------------------------------------------------------------------------


@contextmanager
def _clients(url: str, authority: Path, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run clients that log in, until the block ends. Raises LoadFailed: they did not get in."""
    command = [sys.executable, "-m", "benchmarks.security", url, str(authority), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise LoadFailed("clients could not log in")
            yield process
            if process.wait(SECONDS_MAX):
                raise LoadFailed("clients could not log in")
        finally:
            process.kill()


async def _return_at_once(url: str, tls: linn.Tls, count: int) -> None:
    """Log in with so many clients at once, each of which tries again until it is in, and leaves then."""

    async def visit() -> None:
        async with linn.connect(url, login=LOGIN, tls=tls, wait_s=SECONDS_MAX):
            pass

    async with trio.open_nursery() as nursery:
        print("begun", flush=True)
        for _ in range(count):
            nursery.start_soon(visit)


def main() -> None:
    """Log in as told by the arguments: URL, the file of the authority, and how many."""
    url, authority, count = sys.argv[1:]
    share_processors()
    logging.disable()  # Clients that try again say so.
    try:
        trio.run(_return_at_once, url, linn.Tls(ca=authority), int(count))
    except* LinnError as errors:
        sys.exit(f"benchmarks: {errors.exceptions[0]}")


if __name__ == "__main__":
    main()
