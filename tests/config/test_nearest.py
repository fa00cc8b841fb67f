"""Suggestions for unknown words are searched only if that costs little."""

from __future__ import annotations

import pytest
from stopwatch import at_most

from linn.core.errors.texts import did_you_mean, nearest


def test_the_nearest_word_is_found_among_some() -> None:
    assert nearest("retenton", ["retention", "lease"]) == "retention"
    assert did_you_mean("zzz", ["b", "a"]) == "; known: a, b"


@pytest.mark.measured
def test_among_ten_thousand_topics_nothing_is_looked_for_so_that_a_wrong_name_costs_no_time() -> None:
    known = [f"orders-{number:05}" for number in range(10_000)]
    with at_most(cpu_s=0.05):
        assert did_you_mean("orders-x", known).startswith("; known: orders-00000, ")
