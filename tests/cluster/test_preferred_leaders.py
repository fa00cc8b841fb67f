"""The time at which leaderships return: after five minutes in sync, in one session, and few at a time."""

from __future__ import annotations

from linn.core.cluster.entries import ClusterState, NodeEntry, PartEntry, SessionEntry
from linn.core.cluster.preferred_leaders import A_MINUTE_MAX, IN_SYNC_S, PreferredLeaders


def state_of(topics: int = 1, session: str = "s1", isr: tuple[int, ...] = (1, 2)) -> ClusterState:
    """Node 2 leads topics that prefer node 1."""
    state = ClusterState(1)
    for number, its in [(1, session), (2, "s2")]:
        state.nodes[number] = NodeEntry("f", f"h{number}", "")
        state.sessions[number] = SessionEntry(its, 0, {}, (1, 1))
    state.parts = {f"parts/{n:03}/0": PartEntry(2, "s2", 3, isr, (1, 2)) for n in range(topics)}
    return state


def test_a_leadership_is_due_after_five_minutes_in_sync() -> None:
    preferred = PreferredLeaders()
    assert preferred.wait_s(0.0) == float("inf")
    assert preferred.due(state_of(), 0.0) == set()
    assert preferred.wait_s(100.0) == IN_SYNC_S - 100
    assert preferred.due(state_of(), IN_SYNC_S - 1) == set()
    assert preferred.due(state_of(), IN_SYNC_S) == {"parts/000/0"}


def test_another_session_and_a_time_out_of_sync_begin_anew() -> None:
    for between in (state_of(session="s3"), state_of(isr=(2,))):
        preferred = PreferredLeaders()
        preferred.due(state_of(), 0.0)
        preferred.due(between, 200.0)
        assert preferred.due(state_of(), IN_SYNC_S) == set()


def test_few_are_due_in_a_minute() -> None:
    preferred, state = PreferredLeaders(), state_of(3 * A_MINUTE_MAX)
    preferred.due(state, 0.0)
    first = preferred.due(state, IN_SYNC_S)
    assert len(first) == A_MINUTE_MAX
    for key in first:
        del state.parts[key]
    assert preferred.due(state, IN_SYNC_S + 59) == set()
    assert preferred.wait_s(IN_SYNC_S + 30) == 30
    assert len(preferred.due(state, IN_SYNC_S + 60)) == A_MINUTE_MAX


def test_a_node_that_drains_gets_nothing_back() -> None:
    preferred, state = PreferredLeaders(), state_of()
    state.nodes[1] = NodeEntry("f", "h1", "", draining=True)
    preferred.due(state, 0.0)
    assert preferred.due(state, IN_SYNC_S) == set()
