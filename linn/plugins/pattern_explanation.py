"""Explanations of why a topic exchange's pattern matches a routing key or not, word by word."""

from __future__ import annotations

from linn.core.routing.explanation import Explanation


def explain_pattern(pattern: str, key: str) -> Explanation:
    """Explain each word of the pattern with the words it matches, or the word at which key and pattern differ."""
    words, given = pattern.split("."), key.split(".")
    reached = _reached(words, given)
    count = max(index for index, ends in enumerate(reached) if ends)
    end = max(reached[count])
    matched = len(given) in reached[-1]
    if matched:
        count, end = len(words), len(given)
    parts = _alignment(words[:count], given, reached, end)
    if matched:
        said = _said(parts)
    else:
        parts += [Explanation(word, False) for word in words[count:]]
        said = _parting(words[count:], given[end:], behind_hash=count > 0 and words[count - 1] == "#")
    return Explanation(f'key matches "{pattern}"', matched, said, tuple(parts))


def _reached(words: list[str], given: list[str]) -> list[list[int]]:
    """Return, for each n, the numbers of the key's words that the first n words of the pattern can match, ascending."""
    reached = [[0]]
    for word in words:
        ends = reached[-1]
        if word == "#":
            reached.append(list(range(ends[0], len(given) + 1)) if ends else [])
        else:
            reached.append([end + 1 for end in ends if end < len(given) and word in ("*", given[end])])
    return reached


def _alignment(words: list[str], given: list[str], reached: list[list[int]], end: int) -> list[Explanation]:
    """The words that each word matches, if together they match the first `end` words of the key."""
    parts: list[Explanation] = []
    for index in range(len(words) - 1, -1, -1):
        # The most for the words before, so the fewest for a `#`.
        start = max(place for place in reached[index] if place <= end) if words[index] == "#" else end - 1
        taken = ".".join(given[start:end])
        parts.append(Explanation(words[index], True, f'is "{taken}"' if end > start else "is nothing"))
        end = start
    return parts[::-1]


def _said(parts: list[Explanation]) -> str:
    """The words that the wildcards match, as text."""
    wild = [f"{part.text} {part.because}" for part in parts if part.text in ("*", "#")]
    return ", ".join(wild) or "word for word"


def _parting(words: list[str], given: list[str], *, behind_hash: bool) -> str:
    """The reason why the match ends, given the rest of pattern and key; never are both empty."""
    if not words:
        return f'the pattern ends before "{".".join(given)}"'
    if behind_hash:
        return f'no word that is left is "{words[0]}"'
    if not given:
        return f'the key ends before "{".".join(words)}"'
    return f'"{given[0]}" is not "{words[0]}"'
