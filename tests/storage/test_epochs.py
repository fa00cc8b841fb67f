"""Epochs of a log: the place where two histories part, and snapshots."""

from __future__ import annotations

import pytest

from linn.core.log.facts import EPOCHS_MAX, Epochs, LogFacts
from linn.testing.engines import make_batch


def epochs_of(*firsts: tuple[int, int]) -> Epochs:
    """Epochs, each with its first offset."""
    epochs = Epochs()
    for epoch, first in firsts:
        epochs.note(epoch, first)
    return epochs


def test_only_the_first_batch_of_an_epoch_is_noted() -> None:
    epochs = epochs_of((3, 0), (3, 7), (5, 9), (5, 11), (4, 12))
    assert len(epochs) == 2
    assert epochs.end_of(3, 20) == 9


def test_an_epoch_ends_where_the_next_one_begins_and_the_last_one_with_the_log() -> None:
    epochs = epochs_of((3, 0), (5, 9))
    assert [epochs.end_of(epoch, 20) for epoch in (1, 3, 4, 5, 6)] == [0, 9, 9, 20, 20]


def test_an_empty_log_ends_every_epoch() -> None:
    assert Epochs().end_of(4, 0) == 0
    assert Epochs().at(0) == 0


def test_the_oldest_epochs_are_forgotten() -> None:
    epochs = epochs_of(*((epoch, 10 * epoch) for epoch in range(EPOCHS_MAX + 5)))
    assert len(epochs) == EPOCHS_MAX
    assert epochs.at(49) == 0
    assert epochs.at(50) == 5


def test_a_snapshot_says_the_same() -> None:
    facts = LogFacts()
    for epoch, offset in ((3, 0), (5, 9)):
        batch = make_batch(2)
        batch.number(7, 0, offset, 0)
        batch.stamp(offset, 1_000, 0, epoch)
        facts.note(batch)
    again = LogFacts.decode(facts.encode())
    assert again.encode() == facts.encode()
    assert again.epochs.end_of(3, 20) == 9
    assert 7 in again.producers


@pytest.mark.parametrize("cut", [0, 3, 5, 12, 30])
def test_a_snapshot_that_is_cut_short_is_refused(cut: int) -> None:
    facts = LogFacts()
    facts.epochs = epochs_of((3, 0), (5, 9))
    with pytest.raises(ValueError, match="snapshot"):
        LogFacts.decode(facts.encode()[:cut])
