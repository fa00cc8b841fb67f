"""Segment and index files that are damaged, swapped, cut or lost, before a start and while the broker runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import wire
from attack import Peer, WatchedBroker, attacked, request

from linn.cli.exit_code import ExitCode
from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import BatchError
from linn.testing.process import BrokerNotReady, BrokerProcess
from linn.wire import messages as m

CONFIG = """
[storage.small]
engine = "segmented-log"
segment_bytes_max = 8192
[topics.s]
kind = "stream"
storage = "small"
[topics.q]
storage = "small"
"""
BATCHES, RECORDS = 40, 4


def fill(peer: Peer, topic: str) -> None:
    """Store several segments of batches."""
    for number in range(BATCHES):
        answer = peer.ask(m.Publish(topic), wire.plain([b"%08d" % number * 32] * RECORDS))
        assert isinstance(answer, m.Published), answer


def files(broker: BrokerProcess, topic: str, suffix: str = ".log") -> list[Path]:
    return sorted(path for path in broker.data_dir.rglob(f"{topic}/0/*{suffix}"))


def content(broker: BrokerProcess) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file() and path.name != "lock"}


# --- before a start -------------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def nothing(path: Path) -> None:
    path.write_bytes(b"")


def noise(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * (path.stat().st_size // 256 + 1))


def lose(path: Path) -> None:
    path.unlink()


def swap(first: Path, second: Path) -> None:
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)


def without_index(damage: Callable[[Path], None]) -> Callable[[list[Path]], None]:
    """Damage to the second segment, whose index file is gone: the start has to look at all of it."""

    def do(segments: list[Path]) -> None:
        segments[1].with_suffix(".index").unlink()
        damage(segments[1])

    return do


REFUSED: dict[str, Callable[[list[Path]], None]] = {
    "a flipped byte": without_index(flip),
    "noise": without_index(noise),
    "half a segment": without_index(cut),
    "half a segment beside its index": lambda segments: cut(segments[1]),
    "an empty segment": lambda segments: nothing(segments[1]),
    "a lost segment": lambda segments: lose(segments[1]),
    "the last segment lost": lambda segments: lose(segments[-1]),
    "two segments swapped": lambda segments: swap(segments[1], segments[2]),
}
HARMLESS: dict[str, Callable[[Path], None]] = {
    "flipped": flip,
    "cut": cut,
    "empty": nothing,
    "noise": noise,
    "lost": lose,
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> BrokerProcess:
    """A broker that was filled and stopped in order."""
    broker = BrokerProcess(tmp_path_factory.mktemp("files"), CONFIG).start()
    peer = Peer(broker.address, greeted=True)
    fill(peer, "s")
    peer.close()
    assert broker.stop() == 0
    assert len(files(broker, "s")) >= 4
    return broker


@pytest.mark.parametrize("damage", REFUSED)
def test_damaged_segments_keep_a_broker_from_starting_and_nothing_is_changed(
    stopped: BrokerProcess, damage: str
) -> None:
    before = content(stopped)
    REFUSED[damage](files(stopped, "s"))
    damaged = content(stopped)
    try:
        with pytest.raises(BrokerNotReady) as refusal:
            stopped.start()
        line = refusal.value.text.splitlines()[-1]
        assert refusal.value.returncode == ExitCode.STORAGE
        assert "[log.corrupt]" in line
        assert f"{stopped.data_dir}/small/s/0/" in line
        after = content(stopped)
        assert {path: after.get(path) for path in damaged} == damaged
    finally:
        for path, data in before.items():
            path.write_bytes(data)


def test_damaged_indexes_are_made_anew_from_their_segments(stopped: BrokerProcess) -> None:
    before = content(stopped)
    indexes = files(stopped, "s", ".index")
    for path, damage in zip(indexes, HARMLESS.values(), strict=False):
        damage(path)
    swap(indexes[-1], indexes[-2])
    with stopped:
        peer = Peer(stopped.address, greeted=True)
        values, error = read(peer, "s")
        peer.close()
        assert stopped.stop() == 0
        stopped.start()
    assert (len(values), error) == (BATCHES * RECORDS, "")
    for path, data in before.items():
        path.write_bytes(data)


def read(peer: Peer, topic: str) -> tuple[list[bytes | None], str]:
    """A stream from its beginning, up to its end or to the first error: values, and the error's code."""
    values: list[bytes | None] = []
    offset = 0
    while True:
        peer.send(request(m.Fetch(topic, 0, offset, bytes_max=20_000)))
        _, answer, batches = peer.event()
        if isinstance(answer, m.Failed):
            return values, answer.code
        if not batches:
            return values, ""
        for batch in map(RecordBatch, batches):
            try:
                batch.check_stored()
                values += [record.value for record in batch.records()]
            except BatchError as error:
                return values, error.code
            offset = batch.end_offset


# --- while it runs -------------------------------------------------------------------------------------------------


def test_damage_found_at_run_time_fails_its_readers_by_name_and_no_others(broker: WatchedBroker) -> None:
    with attacked(broker) as attack:
        peer = attack.connect()
        for topic in ("s", "q"):
            fill(peer, topic)
            second, third, fourth = files(broker, topic)[1:4]
            for path, damage in ((second, flip), (third, cut), (fourth, noise)):
                rewritten = path.read_bytes()
                damage(path)
                assert path.read_bytes() != rewritten
        values, code = read(peer, "s")
        assert 0 < len(values) < BATCHES * RECORDS
        assert code in ("batch.corrupt", "log.corrupt")
        for path in files(broker, "s")[2:4]:
            text = failure(peer, int(path.stem) + 1)
            assert str(path) in text
        assert isinstance(peer.ask(m.Publish("q"), wire.plain([b"still there"])), m.Published)
        subscribed = peer.ask(m.Subscribe("q", credit=1_000))
        assert isinstance(subscribed, m.Subscribed)
        delivered = until_delivered(peer, b"still there")
        assert 0 < len(delivered) < BATCHES * RECORDS
        assert "are damaged, and are not delivered" in broker.log_text()
        assert str(files(broker, "q")[1]) in broker.log_text()
        last = peer.ask(m.Publish("s"), wire.plain([b"still there"]))
        assert isinstance(last, m.Published), last
        assert peer.administer("topic.show", name="s")["partitions"][0]["end"] == BATCHES * RECORDS + 1
        peer.is_served()


def failure(peer: Peer, offset: int) -> str:
    answer = peer.ask(m.Fetch("s", 0, offset, bytes_max=20_000))
    assert isinstance(answer, m.Failed), answer
    assert answer.code == "log.corrupt"
    return answer.text


def until_delivered(peer: Peer, last: bytes) -> list[bytes | None]:
    """The values that a queue's consumer is pushed, up to that one."""
    values: list[bytes | None] = []
    while last not in values:
        _, message, batches = peer.event()
        assert isinstance(message, m.Deliver), message
        values += [record.value for batch in map(RecordBatch, batches) for record in batch.records()]
    return values
