"""Producer ids of a client: used again where nobody can take one use for another, and else not."""

from __future__ import annotations

import pytest

from linn.client.connection.producer_ids import EPOCH_MAX, IDS_PER_CLIENT, ProducerIds
from linn.core.errors.tree import LimitExceeded

FIRST = 1 << 20
KEY = 1 << 63
OWNER, OTHER = 7, 8


def made() -> ProducerIds:
    ids = ProducerIds()
    ids.begin(FIRST, KEY)
    ids.begin(1, 2)  # Of a later connection.
    return ids


def test_plain_producers_use_fresh_ids_first_and_then_those_that_came_back_in_a_later_epoch() -> None:
    ids = made()
    ids.give_back(*ids.take())
    taken = [ids.take() for _ in range(IDS_PER_CLIENT)]
    assert taken == [*((FIRST + each, 0) for each in range(1, IDS_PER_CLIENT)), (FIRST, 1)]
    with pytest.raises(LimitExceeded, match="close a producer"):
        ids.take()
    ids.give_back(FIRST, EPOCH_MAX)
    with pytest.raises(LimitExceeded):
        ids.take()


def test_a_transaction_uses_the_ids_of_its_owners_earlier_ones_and_none_twice() -> None:
    ids = made()
    first = ids.take((OWNER, 1))
    ids.give_back(*first, (OWNER, 1))
    assert ids.take((OWNER, 1)) == (FIRST + 1, 0), "its commit names ids"
    assert ids.take((OTHER, 2)) == (FIRST + 2, 0), "an id belongs to one owner"
    assert ids.take((OWNER, 2)) == (FIRST, 1)
    assert ids.take((OWNER, 2)) == (FIRST + 3, 0)


def test_ids_of_transactions_are_not_used_by_others_also_where_no_other_is_left() -> None:
    ids = made()
    for number in range(IDS_PER_CLIENT):
        ids.give_back(*ids.take((OWNER + number, 1)), (OWNER + number, 1))
    for use in ((0, 0), (OWNER, 1), (OWNER + IDS_PER_CLIENT, 1)):
        with pytest.raises(LimitExceeded, match="another client"):
            ids.take(use)
    assert ids.take((OWNER, 2)) == (FIRST, 1)
