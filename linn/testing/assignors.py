"""The conformance suite of assignors: `AssignorConformance`, to subclass.

    class TestByWeight(AssignorConformance):
        @pytest.fixture
        def harness(self) -> AssignorHarness:
            return AssignorHarness(make=ByWeight, balanced=False)

Law: a test does not know the purpose of the assignor; it checks the promises on which the broker relies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from linn.core.groups.assignor import Assignor, Owners, TopicPartition, checked_owners

Group = Mapping[str, Sequence[str]]
"""Topics by member."""

_SIZES = {"orders": 5, "returns": 3, "empty": 0, "single": 1}
_GROUPS: Sequence[Group] = (
    {"ann": ["orders"]},
    {"ann": ["orders"], "bob": ["orders"]},
    {"ann": ["orders", "returns"], "bob": ["orders"], "cyd": ["returns", "single"]},
    {"cyd": ["returns"], "dot": ["orders", "empty"], "zoe": ["gone"]},
    {f"member-{number}": ["orders", "returns"] for number in range(12)},
    {"member-7": ["orders", "single"]},
    {},
)
"""Members of a group as they come and go; their topics include one without partitions and one that is gone."""


@dataclass(frozen=True)
class AssignorHarness:
    """Assignor, and groups that are typical for it."""

    make: Callable[[], Assignor]
    """Make the assignor."""
    balanced: bool = True
    """Whether members that read the same topics get shares that differ by at most one partition."""
    groups: Sequence[Group] = ()
    """Additional groups to try, in this order."""


class AssignorConformance:
    """The promises of `linn.core.groups.assignor`. A subclass gives the fixture `harness`."""

    def test_every_partition_that_is_read_has_an_owner_that_reads_its_topic(self, harness: AssignorHarness) -> None:
        assignor = harness.make()
        previous: Owners = {}
        for members in (*_GROUPS, *harness.groups):
            previous = _owners(assignor, members, previous)
            topics = {topic for names in members.values() for topic in names}
            wanted = {(topic, index) for topic in topics for index in range(_SIZES.get(topic, 0))}
            assert set(previous) == wanted
            for (topic, index), member in previous.items():
                assert topic in members[member], f"{member} does not read {topic}, but owns its partition {index}"

    def test_the_same_group_is_divided_in_the_same_way(self, harness: AssignorHarness) -> None:
        assignor = harness.make()
        previous: Owners = {}
        for members in (*_GROUPS, *harness.groups):
            owners = _owners(assignor, members, previous)
            assert owners == _owners(assignor, members, previous)
            assert owners == _owners(harness.make(), members, previous), "after a restart"
            previous = owners

    def test_what_it_is_given_is_not_changed(self, harness: AssignorHarness) -> None:
        assignor = harness.make()
        for members in (*_GROUPS, *harness.groups):
            given: dict[str, list[str]] = {member: list(topics) for member, topics in members.items()}
            sizes, previous = dict(_SIZES), {("orders", 0): "ann", ("orders", 99): "gone"}
            assignor.assign(given, sizes, previous)
            assert given == {member: list(topics) for member, topics in members.items()}
            assert (sizes, previous) == (_SIZES, {("orders", 0): "ann", ("orders", 99): "gone"})

    def test_it_settles_while_members_stay(self, harness: AssignorHarness) -> None:
        assignor = harness.make()
        for members in (*_GROUPS, *harness.groups):
            owners = _owners(assignor, members, {})
            assert owners == _owners(assignor, members, owners), "partitions would move with every change elsewhere"

    def test_shares_are_equal_if_it_balances(self, harness: AssignorHarness) -> None:
        if not harness.balanced:
            return
        for count in (1, 2, 3, 5, 8):
            members = {f"member-{number}": ["orders"] for number in range(count)}
            shares = Counter(_owners(harness.make(), members, {}).values())
            assert max(shares.values()) - min(shares[member] for member in members) <= 1


def _owners(assignor: Assignor, members: Group, previous: Owners) -> dict[TopicPartition, str]:
    """Ask an assignor for the owners. Raises its errors."""
    return dict(checked_owners(assignor, members, _SIZES, previous))
