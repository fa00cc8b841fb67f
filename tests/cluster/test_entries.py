"""Entries of the metadata store, read whole or refused; and what follows from them."""

from __future__ import annotations

import msgspec
import pytest

from linn.core.cluster.entries import (
    ENDS_MAX,
    ClusterEntry,
    ClusterState,
    NodeEntry,
    PartEntry,
    SessionEnd,
    SessionEntry,
    check_level,
    unnoted_session,
    with_end,
)
from linn.core.errors.cluster import LevelTooLow, MetadataInvalid, MetadataLater
from linn.core.metadata.levels import LEVEL
from linn.core.metadata.store import Stored

NODE = {"folder_id": "f", "host": "h", "rack": "r"}
SESSION = {"session": "s", "since_ms": 1, "addresses": {"native": "h:1"}, "levels": [1, 1]}
PART = {"leader": 1, "session": "s", "epoch": 3, "isr": [1, 2], "replicas": [1, 2, 3]}


def state_of(**entries: object) -> ClusterState:
    keys = {key.replace("__", "/"): value for key, value in entries.items()}
    return ClusterState.of(9, {key: Stored(5, value) for key, value in keys.items()})


def test_all_entries_are_decoded_with_their_revisions() -> None:
    state = state_of(
        cluster={"id": "c", "level": 2},
        nodes__2=NODE,
        sessions__2=SESSION,
        versions__2="0.1.0",
        controller={"node": 2, "session": "s"},
        parts__t__0=PART,
        ended__2=[{"session": "a", "at_ms": 7, "reason": "left"}],
        counters__starts=12,
    )
    assert state.cluster == ClusterEntry("c", 2)
    assert state.nodes == {2: NodeEntry("f", "h", "r")}
    assert state.sessions == {2: SessionEntry("s", 1, {"native": "h:1"}, (1, 1), "none")}
    assert state.versions == {2: "0.1.0"}
    assert state.parts == {"parts/t/0": PartEntry(1, "s", 3, (1, 2), (1, 2, 3))}
    assert state.ended == {2: (SessionEnd("a", 7, "left"),)}
    assert (state.starts, state.revision) == (12, 9)
    assert state.revision_of("nodes/2") == 5
    assert state.revision_of("nodes/3") == 0


def test_what_is_written_is_read() -> None:
    part = PartEntry(1, "s", 3, (1, 2), (1, 2, 3), (4,))
    written = msgspec.json.decode(msgspec.json.encode(part))
    assert state_of(parts__t__0=written).parts == {"parts/t/0": part}


def test_entries_of_other_parts_are_left_to_them() -> None:
    assert state_of(topics__jobs=["whatever"], users__ada=None).revisions == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nodes/1", {**NODE, "later": 1}),
        ("nodes/1", {**NODE, "host": "h" * 1025}),
        ("nodes/0", NODE),
        ("nodes/-1", NODE),
        ("nodes/\u0661", NODE),
        ("sessions/1", {**SESSION, "lost": "some"}),
        ("sessions/1", {**SESSION, "levels": [1]}),
        ("versions/1", {"version": "0.1.0"}),
        ("versions/x", "0.1.0"),
        ("parts/t/0", {**PART, "epoch": -1}),
        ("parts/t/0", {**PART, "replicas": []}),
        ("parts/t/0", {**PART, "isr": [0]}),
        ("counters/starts", -1),
        ("counters/starts", 1 << 31),
        ("counters/starts", True),
        ("cluster", {"id": "", "level": 2}),
    ],
)
def test_an_entry_of_another_shape_is_refused_by_its_key_and_changes_nothing(key: str, value: object) -> None:
    state = state_of(nodes__2=NODE)
    with pytest.raises(MetadataInvalid, match=r"metadata store"):
        state.apply(10, {"nodes/2": None, key: Stored(10, value)})
    assert state.nodes.keys() == {2}
    assert state.revision == 9


def test_metadata_of_a_later_level_is_refused_whatever_its_shape() -> None:
    later = {"cluster": Stored(5, {"level": 3, "shape": "unknown"})}
    check_level(later, 3)
    with pytest.raises(MetadataLater, match=r"has level 3, and this version of linn knows up to level 2"):
        check_level(later, 2)
    check_level({"cluster": None, "nodes/2": Stored(5, NODE)}, 1)


def test_what_needs_a_greater_level_is_refused() -> None:
    state = state_of(cluster={"id": "c", "level": 2})
    state.check_level(2, "things")
    with pytest.raises(
        LevelTooLow, match="things need a cluster of level 3, and this one has level 2: run linn cluster"
    ):
        state.check_level(3, "things")
    assert ClusterState().level == LEVEL, "a new cluster has the greatest"


def test_changes_replace_and_remove_entries() -> None:
    state = state_of(nodes__2=NODE, nodes__3=NODE, counters__starts=3)
    changes = {"nodes/2": None, "nodes/3": Stored(11, {**NODE, "rack": "b"}), "counters/starts": None, "nodes/x": None}
    state.apply(11, changes)
    assert {number: node.rack for number, node in state.nodes.items()} == {3: "b"}
    assert (state.starts, state.revision_of("nodes/3"), state.revision_of("nodes/2")) == (0, 11, 0)


def test_a_session_that_ended_is_noted_once() -> None:
    node = {**NODE, "session": "s"}
    assert unnoted_session(state_of(nodes__2=node), 2) == "s"
    assert unnoted_session(state_of(nodes__2=node, sessions__2=SESSION), 2) is None, "alive"
    assert unnoted_session(state_of(nodes__2=NODE), 2) is None, "never registered"
    assert unnoted_session(state_of(), 2) is None
    ended = [{"session": "s", "at_ms": 7, "reason": "left"}]
    assert unnoted_session(state_of(nodes__2=node, ended__2=ended), 2) is None


def test_only_the_last_ends_are_kept() -> None:
    ends: tuple[SessionEnd, ...] = ()
    for number in range(ENDS_MAX + 3):
        ends = with_end(ends, SessionEnd(str(number), number, "given up"))
    assert [end.session for end in ends] == [str(number) for number in range(3, ENDS_MAX + 3)]
