"""Balance of a cluster: replicas and preferred leaders spread evenly over the nodes, by few moves. A pure function.

Laws: a topic keeps its number of replicas, and none of them joins another one in its rack or on its host. Only nodes
that are alive and do not drain get or give replicas. A topic that moves counts where it goes, and stays alone; so does
one with a replica that is down. Weights are partitions, as in the placement. Where all topics weigh the same and no
racks hinder it, nodes differ by one replica at most, and by two preferred leaders. An even cluster is not changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import permutations

from linn.core.cluster.entries import ClusterState, PartEntry
from linn.core.cluster.moves import drains

Replicas = tuple[int, ...]


def balanced(state: ClusterState, weights: Mapping[str, int]) -> dict[str, Replicas]:
    """Replicas by topic after a balance, the preferred leader first, without topics that do not change.

    `weights`: partitions of the topics that count, by the keys of their entries. Takes about 20 us a topic.
    """
    balance = _Balance(state, weights)
    balance.separate()
    balance.spread(balance.held, balance.replica_moves)
    balance.spread(balance.preferred, balance.preferred_moves)
    return {key: now for key, now in sorted(balance.replicas.items()) if now != state.parts[key].replicas}


class _Balance:
    """A balance that is being found."""

    def __init__(self, state: ClusterState, weights: Mapping[str, int]) -> None:
        self._state = state
        self._weights = weights
        self._usable = [node for node in sorted(state.sessions) if node in state.nodes and not drains(state, node)]
        self.replicas: dict[str, Replicas] = {}
        """The replicas that topics are to have, by key, without topics that may not move."""
        self.held, self.preferred = Counter[int](), Counter[int]()
        """Partitions by node."""
        for key, weight in weights.items():
            part = state.parts.get(key)
            if part is not None:
                goal = part.target or part.replicas
                self._count(goal, weight)
                if _may_move(state, part):
                    self.replicas[key] = goal

    def _count(self, replicas: Replicas, weight: int) -> None:
        self.preferred[replicas[0]] += weight
        for node in replicas:
            self.held[node] += weight

    def _put(self, key: str, now: Replicas) -> None:
        self._count(self.replicas[key], -self._weights[key])
        self._count(now, self._weights[key])
        self.replicas[key] = now

    def _together(self, replicas: Iterable[int]) -> tuple[int, int]:
        """The numbers of replicas that share a rack with another one, and a host."""
        nodes = [self._state.nodes[node] for node in replicas]
        racks = [node.rack for node in nodes if node.rack]
        return len(racks) - len({*racks}), len(nodes) - len({node.host for node in nodes})

    def separate(self) -> None:
        """Move replicas that share a rack or a host with others to where they do not."""
        for key in sorted(self.replicas):
            while (now := self._apart(self.replicas[key])) != self.replicas[key]:
                self._put(key, now)

    def _apart(self, replicas: Replicas) -> Replicas:
        """The replicas after the move of one that sets them apart the most; unchanged if none does."""
        before = self._together(replicas)
        if before == (0, 0):
            return replicas
        moves = [
            _with(replicas, a, b) for a in replicas for b in self._usable if a in self._usable and b not in replicas
        ]
        found = [
            (self._together(now), self.held[next(iter({*now} - {*replicas}))], now)
            for now in moves
            if self._together(now) < before
        ]
        return min(found)[-1] if found else replicas

    def spread(self, loads: Counter[int], moves: Callable[[int, int], Iterator[tuple[str, Replicas]]]) -> None:
        """Make moves from nodes with more to nodes with less, until none makes them more even.

        `moves`: the moves of one topic each from one node to another.
        """
        is_moved = True
        while is_moved:
            is_moved = False
            waiting = {pair: moves(*pair) for pair in permutations(self._usable, 2)}
            while waiting:
                a, b = pair = max(waiting, key=lambda pair: (loads[pair[0]] - loads[pair[1]], pair))
                if loads[a] - loads[b] < 2:
                    break
                key, now = next(waiting[pair], ("", ()))
                if not now:
                    del waiting[pair]
                elif self._weights[key] < loads[a] - loads[b]:
                    self._put(key, now)
                    is_moved = True

    def replica_moves(self, a: int, b: int) -> Iterator[tuple[str, Replicas]]:
        """The moves of a replica from node a to node b: at first of one that is not to lead."""
        on = [(now[0] == a, -self._weights[key], key) for key, now in self.replicas.items() if a in now]
        for _, _, key in sorted(on):
            before = self.replicas[key]
            if a in before and b not in before:
                now = _with(before, a, b)
                if self._together(now) <= self._together(before):
                    yield key, now

    def preferred_moves(self, a: int, b: int) -> Iterator[tuple[str, Replicas]]:
        """The changes of the preferred leader from node a to node b: at first of topics that move anyway."""
        led = [
            (now == self._state.parts[key].replicas, -self._weights[key], key)
            for key, now in self.replicas.items()
            if now[0] == a and b in now
        ]
        for _, _, key in sorted(led):
            before = self.replicas[key]
            if before[0] == a and b in before:
                yield key, (b, *(a if node == b else node for node in before[1:]))


def _may_move(state: ClusterState, part: PartEntry) -> bool:
    """Whether a topic has a leader, does not move, and nothing would hold its move up."""
    is_led = part.leader in part.isr and part.leader in state.sessions
    return is_led and not part.target and all(node in state.sessions and node in state.nodes for node in part.replicas)


def _with(replicas: Replicas, a: int, b: int) -> Replicas:
    """The replicas with node b in the place of node a."""
    return tuple(b if node == a else node for node in replicas)
