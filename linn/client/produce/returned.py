"""Which messages of a batch a broker returned, because no topic took them: ranges as `Placement.returned` has them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def is_returned(ranges: Sequence[int], place: int) -> bool:
    """Whether the message at `place` of its batch was returned."""
    # Behind an odd number of bounds one is inside a range.
    return bool(bisect_right(ranges, place) & 1)


def places_returned(ranges: Sequence[int], count: int) -> list[int]:
    """The places of all that were returned, of a batch of `count` messages, whatever a broker says beyond it."""
    return [place for place in range(count) if is_returned(ranges, place)] if ranges else []
