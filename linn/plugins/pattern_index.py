"""Which of many topic patterns match a routing key, at a cost that no patterns can multiply.

A pattern is its beginning, up to its first wildcard, by which it is looked up, and the rest. Rests lie side by side in
blocks, with one bit for each place before, between and behind their words, and a block follows all of them at once, a
word of the key after the other: the shift-and automaton (Baeza-Yates and Gonnet, "A New Approach to Text Searching",
1992), in which `#` is a place that stays. What it costs is the bits of the rests times the words of the key, and a
thousand of these bits are as quick as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from linn.core.batch.steps import Steps

BLOCK_BITS = 8_192
"""Of one block: a word of the key takes it a microsecond, and each of its distinct words half a KiB on average."""
WORDS_A_STEP = 256
"""Words that blocks are shown in one step: a quarter of a millisecond."""


class PatternIndex:
    """Patterns by number. Adding and removing cost the same whatever number of them there is."""

    def __init__(self) -> None:
        self._beginnings: dict[str, _Beginning] = {}
        """By the words before the first wildcard, each with a dot before it."""

    def add(self, number: int, pattern: str) -> None:
        """Keep a pattern under a number that is not taken."""
        beginning, rest = _parted(pattern)
        self._beginnings.setdefault(beginning, _Beginning()).add(number, rest)

    def remove(self, number: int, pattern: str) -> None:
        """Forget a pattern that was added under that number."""
        beginning, rest = _parted(pattern)
        place = self._beginnings[beginning]
        place.remove(number, rest)
        if place.is_bare():
            del self._beginnings[beginning]

    def is_empty(self) -> bool:
        """Whether no pattern is left."""
        return not self._beginnings

    def matching(self, key: str) -> Steps[list[int]]:
        """The numbers of the patterns that match a routing key, in steps between which patterns may come and go."""
        words, text = key.split("."), f".{key}"
        found: list[int] = []
        end = shown = 0
        for depth in range(len(words) + 1):
            place = self._beginnings.get(text[:end])
            if place is not None:
                found += place.longer
                if depth == len(words):
                    found += place.whole
                left = words[depth:]
                for block in tuple(place.blocks):
                    found += block.matching(left)
                    shown += len(left)
                    if shown >= WORDS_A_STEP:
                        yield
                        shown = 0
            end = text.find(".", end + 1)
            if end < 0:
                end = len(text)
        return found


class _Beginning:
    """The patterns that begin with the same words, up to their first wildcard."""

    __slots__ = ("blocks", "longer", "whole")

    def __init__(self) -> None:
        self.whole: set[int] = set()
        """Those that end there."""
        self.longer: set[int] = set()
        """Those that go on with `#` alone: they match whatever comes."""
        self.blocks: list[_Block] = []

    def add(self, number: int, rest: Sequence[str]) -> None:
        """Keep the pattern that goes on with these words."""
        if not rest:
            self.whole.add(number)
        elif list(rest) == ["#"]:
            self.longer.add(number)
        else:
            block = next((each for each in reversed(self.blocks) if each.has_room(rest)), None)
            if block is None:
                self.blocks.append(block := _Block())
            block.add(number, rest)

    def remove(self, number: int, rest: Sequence[str]) -> None:
        """Forget a pattern."""
        self.whole.discard(number)
        self.longer.discard(number)
        block = next((each for each in self.blocks if number in each), None)
        if block is not None:
            block.remove(number)
            if block.is_empty():
                self.blocks.remove(block)

    def is_bare(self) -> bool:
        """Whether nothing is left."""
        return not (self.whole or self.longer or self.blocks)


class _Block:
    """Rests of patterns side by side: the bit at the place of a word stands for "all before this word has matched"."""

    __slots__ = (
        "_bits",
        "_ends",
        "_hashes",
        "_live_bits",
        "_numbers",
        "_rests",
        "_stars",
        "_starts",
        "_wild",
        "_words",
    )

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._rests: dict[int, tuple[int, Sequence[str]]] = {}
        """(the place of its first bit, its words) by number."""
        self._bits = self._live_bits = 0
        """Bits that are given out, and those of them whose pattern is still there."""
        self._wild = 0
        """Rests without any word of their own, which match whatever words a key has."""
        self._starts = self._stars = self._hashes = self._ends = 0
        self._words: dict[str, int] = {}
        """The places of each word."""
        self._numbers: dict[int, int] = {}
        """By the place behind the last word."""

    def __contains__(self, number: int) -> bool:
        return number in self._rests

    def has_room(self, rest: Sequence[str]) -> bool:
        """Whether there are bits left for it."""
        return self._bits + len(rest) + 1 <= BLOCK_BITS

    def is_empty(self) -> bool:
        """Whether no pattern is left."""
        return not self._rests

    def add(self, number: int, rest: Sequence[str]) -> None:
        """Keep a rest, of at least one word."""
        first = self._bits
        self._rests[number] = first, rest
        self._starts |= 1 << first
        for bit, word in enumerate(rest, first):
            if word == "*":
                self._stars |= 1 << bit
            elif word == "#":
                self._hashes |= 1 << bit
            else:
                self._words[word] = self._words.get(word, 0) | 1 << bit
        self._ends |= 1 << first + len(rest)
        self._numbers[first + len(rest)] = number
        self._bits += len(rest) + 1
        self._live_bits += len(rest) + 1
        self._wild += _is_wild(rest)

    def remove(self, number: int) -> None:
        """Forget a rest. Its bits are given out again once half of all are of such."""
        first, rest = self._rests.pop(number)
        end = first + len(rest)
        self._starts &= ~(1 << first)
        self._ends &= ~(1 << end)
        del self._numbers[end]
        self._live_bits -= len(rest) + 1
        self._wild -= _is_wild(rest)
        if 2 * self._live_bits < self._bits:
            left = self._rests
            self._clear()
            for other, (_, words) in left.items():
                self.add(other, words)

    def matching(self, words: Sequence[str]) -> list[int]:
        """The numbers of the rests that match all of these words."""
        known, stars, hashes = self._words, self._stars, self._hashes
        if not self._wild and known.keys().isdisjoint(words):
            return []
        places = self._starts
        places |= (places & hashes) << 1  # `#` may be nothing; two never follow one another.
        for word in words:
            places = (places & (known.get(word, 0) | stars)) << 1 | places & hashes
            if not places:
                return []
            places |= (places & hashes) << 1
        found: list[int] = []
        reached = places & self._ends
        while reached:
            end = reached.bit_length() - 1
            found.append(self._numbers[end])
            reached ^= 1 << end
        return found


def _parted(pattern: str) -> tuple[str, Sequence[str]]:
    """The words before the first wildcard, each with a dot before it; and the others, with `#.#` as the `#` it is."""
    words = [word for each, same in groupby(pattern.split(".")) for word in (("#",) if each == "#" else same)]
    first = next((place for place, word in enumerate(words) if word in ("*", "#")), len(words))
    return "".join([f".{word}" for word in words[:first]]), words[first:]


def _is_wild(rest: Sequence[str]) -> bool:
    return set(rest) <= {"*", "#"}
