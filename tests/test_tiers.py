"""Every test is in one tier, and every tier can be run."""

from __future__ import annotations

import pytest
import tiers


def test_every_test_is_in_one_tier(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        assert [marker.name for marker in item.iter_markers() if marker.name in tiers.TIERS] == [tiers.tier_of(item)]


def test_a_test_that_is_marked_twice_is_refused(request: pytest.FixtureRequest) -> None:
    request.node.add_marker("soak")
    try:
        with pytest.raises(pytest.UsageError, match="is marked quick and soak: a test is in one tier"):
            tiers.tier_of(request.node)
    finally:
        request.node.own_markers.pop()


@pytest.mark.parametrize(
    ("file", "has"),
    [
        ("batch/test_stamp.py", {"quick"}),
        ("simulation/test_crashes.py", {"quick", "test", "soak"}),
        ("exchanges/test_exchange_conformance.py", {"test", "perf"}),
    ],
)
def test_a_file_without_tests_of_the_requested_tiers_is_left_out(file: str, has: set[str]) -> None:
    left_out = {tier for tier in tiers.TIERS if tiers.has_none_of(tiers.TESTS / file, {tier})}
    assert left_out == {*tiers.TIERS} - has


def test_every_tier_is_a_make_target_and_is_documented() -> None:
    root = tiers.TESTS.parent
    makefile, page = (root / "Makefile").read_text(), (root / "CONTRIBUTING.md").read_text()
    for tier in tiers.TIERS:
        assert f"\n{tier}: $(STAMP)" in makefile
        assert f"| `make {tier}` |" in page
