"""An index of topic patterns: finds the patterns that match a routing key, at a bounded cost for any set of patterns.

A pattern is split into its prefix, up to its first wildcard, by which it is looked up, and the rest. Rests lie side by
side in blocks, with one bit for each place before, between and after their words, and a block is matched against the
words of the key one by one, with the shift-and automaton (Baeza-Yates and Gonnet, "A New Approach to Text Searching",
1992), in which `#` is a place that stays set. The cost is the bits of the rests times the words of the key; a thousand
bits are as fast as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from linn.api import Steps

BLOCK_BITS = 8_192
"""Bits of a block: matching a word of the key takes a microsecond, and each distinct word half a KiB on average."""
WORDS_A_STEP = 256
"""Words matched against blocks in one step: a quarter of a millisecond."""


class PatternIndex:
    """Patterns by number. Adding and removing take constant time."""

    def __init__(self) -> None:
        self._beginnings: dict[str, _Beginning] = {}
        """Patterns by the words before the first wildcard, each with a dot before it."""

    def add(self, number: int, pattern: str) -> None:
        """Add a pattern under an unused number."""
        beginning, rest = _split(pattern)
        self._beginnings.setdefault(beginning, _Beginning()).add(number, rest)

    def remove(self, number: int, pattern: str) -> None:
        """Remove a pattern by its number."""
        beginning, rest = _split(pattern)
        place = self._beginnings[beginning]
        place.remove(number, rest)
        if place.is_bare():
            del self._beginnings[beginning]

    def is_empty(self) -> bool:
        """Whether no pattern is left."""
        return not self._beginnings

    def matching(self, key: str) -> Steps[list[int]]:
        """The numbers of the patterns that match a routing key; patterns may be added or removed between the steps."""
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
    """The patterns with the same words before their first wildcard."""

    __slots__ = ("blocks", "longer", "whole")

    def __init__(self) -> None:
        self.whole: set[int] = set()
        """Patterns that end after these words."""
        self.longer: set[int] = set()
        """Patterns that continue with only `#`: they match any further words."""
        self.blocks: list[_Block] = []

    def add(self, number: int, rest: Sequence[str]) -> None:
        """Add the pattern that continues with these words."""
        if not rest:
            self.whole.add(number)
        elif list(rest) == ["#"]:
            self.longer.add(number)
        else:
            block = next((held for held in reversed(self.blocks) if held.has_room(rest)), None)
            if block is None:
                self.blocks.append(block := _Block())
            block.add(number, rest)

    def remove(self, number: int, rest: Sequence[str]) -> None:
        """Remove a pattern."""
        self.whole.discard(number)
        self.longer.discard(number)
        block = next((held for held in self.blocks if number in held), None)
        if block is not None:
            block.remove(number)
            if block.is_empty():
                self.blocks.remove(block)

    def is_bare(self) -> bool:
        """Whether no pattern is left."""
        return not (self.whole or self.longer or self.blocks)


class _Block:
    """Rests of patterns side by side: the bit at a word's place means "all words before this one have matched"."""

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
        """(place of the first bit, words) by number."""
        self._bits = self._live_bits = 0
        """Allocated bits, and the number of them in use by existing patterns."""
        self._wild = 0
        """Rests without literal words, which match any words."""
        self._starts = self._stars = self._hashes = self._ends = 0
        self._words: dict[str, int] = {}
        """Bits of the places of each word."""
        self._numbers: dict[int, int] = {}
        """Numbers by the place after the last word."""

    def __contains__(self, number: int) -> bool:
        return number in self._rests

    def has_room(self, rest: Sequence[str]) -> bool:
        """Whether there are bits left for a rest."""
        return self._bits + len(rest) + 1 <= BLOCK_BITS

    def is_empty(self) -> bool:
        """Whether no pattern is left."""
        return not self._rests

    def add(self, number: int, rest: Sequence[str]) -> None:
        """Add a rest of at least one word."""
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
        """Remove a rest. Its bits are reused once half of all bits belong to removed rests."""
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
        places |= (places & hashes) << 1  # `#` may match nothing; two never follow one another.
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


def _split(pattern: str) -> tuple[str, Sequence[str]]:
    """Split a pattern: the words before the first wildcard, each with a dot before it, and the remaining words, with
    `#.#` reduced to `#`."""
    words = [word for first, same in groupby(pattern.split(".")) for word in (("#",) if first == "#" else same)]
    first = next((place for place, word in enumerate(words) if word in ("*", "#")), len(words))
    return "".join([f".{word}" for word in words[:first]]), words[first:]


def _is_wild(rest: Sequence[str]) -> bool:
    return set(rest) <= {"*", "#"}
