"""A verb of the administration, and its arguments: a JSON object whose size is checked before it is decoded.

Law: refusing an oversized text costs no more than scanning it; whatever is decoded is small enough to need no turns.
Only a change may wait for another change, and it waits as text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import ConfigError, ConfigUnknownKey, LimitExceeded

ARGUMENTS_BYTES_MAX = 1 << 20
"""Limit of a verb's arguments, in UTF-8. The largest are a topic's settings with all its bindings: 10,000 take 0.7 MiB.
"""
VALUES_MAX = 32_768
"""Limit of the values in the arguments, on all levels together: 10,000 bindings with a key. Decoded they take up to 8
MiB and 10 ms; a mebibyte of empty arrays would take 21 MiB and 0.1 s.
"""
NESTING_MAX = 32
"""Limit of the nesting of the arguments: more than any plugin's settings need, and far below the interpreter's
recursion limit.
"""
Arguments = Mapping[str, Any]


class Verb(NamedTuple):
    """A request to the broker by name, with its handler and its arguments."""

    perform: Callable[..., Awaitable[Any]]
    """Takes the arguments, and the caller's name where `names_caller`."""
    takes: tuple[str, ...] = ()
    """Names of its arguments; a misspelt one must not pass for one that was left out."""
    changes: bool = True
    """Whether it changes anything. A verb that only reads does not wait for a change, and never shows one half made."""
    names_caller: bool = False
    """Whether `perform` is told who asks, for a log line."""


def check_size(verb: str, text: str) -> None:
    """Look at the arguments of a verb before they are decoded.

    Raises LimitExceeded: they are longer than any that make sense. ConfigError: they hold too many values.
    """
    if len(text) > ARGUMENTS_BYTES_MAX or len(text.encode()) > ARGUMENTS_BYTES_MAX:
        raise LimitExceeded(f"the arguments of {verb} have more than {ARGUMENTS_BYTES_MAX} bytes")
    # Each value but the first stands behind one of these. Those inside a text count too: there are seldom many.
    if sum(map(text.count, ",[{")) > VALUES_MAX:
        raise ConfigError(f"the arguments of {verb} hold more than {VALUES_MAX} values")


def decode_arguments(verb: str, takes: tuple[str, ...], text: str) -> dict[str, Any]:
    """Decode a verb's arguments from JSON.

    Raises:
        As `check_size`. ConfigError: not a JSON object, or nested too deeply. ConfigUnknownKey: a name is not among
            `takes`.
    """
    check_size(verb, text)
    try:
        decoded = msgspec.json.decode(text)  # Stricter than the standard library: no NaN, and no half a character.
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"the arguments of {verb} are not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise ConfigError(f"the arguments of {verb} must be a JSON object")
    if _is_deeper(decoded, NESTING_MAX):
        raise ConfigError(f"the arguments of {verb} are nested deeper than {NESTING_MAX} levels")
    for name in sorted(decoded.keys() - takes):
        raise ConfigUnknownKey(f'{verb} takes no argument "{name[:80]}"{did_you_mean(name, takes)}')
    return decoded


def only_validates(arguments: Arguments) -> bool:
    """Whether a change is only to be validated: it is refused as it would be, and otherwise nothing happens.

    Raises ConfigError: `validate_only` is not true or false.
    """
    value = arguments.get("validate_only", False)
    if not isinstance(value, bool):
        raise ConfigError('the argument "validate_only" must be true or false')
    return value


def _is_deeper(value: list[Any] | dict[str, Any], levels: int) -> bool:
    """Whether an array or object of JSON is nested deeper than so many levels."""
    parts: list[Any] = [value]
    for _ in range(levels):
        items = (part.values() if isinstance(part, dict) else part for part in parts)
        parts = [item for item in chain.from_iterable(items) if isinstance(item, dict | list)]
    return bool(parts)
