"""Decoding of the arguments of a verb: a JSON object whose size is checked before it is decoded.

Law: refusing an oversized text costs no more than scanning it; decoded arguments are small enough to need no turns.
Only a change may wait for another change, and it waits as text.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import msgspec

from linn.core.config.decoder import TYPE_NAMES, Field, fields_of, in_words, plain_types
from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import ConfigError, ConfigUnknownKey, LimitExceeded
from linn.verbs import A, Verb

ARGUMENTS_BYTES_MAX = 1 << 20
"""Limit of a verb's arguments, in UTF-8. A topic's settings with 10,000 bindings, the largest ones, take 0.7 MiB."""
VALUES_MAX = 32_768
"""Limit of the values in the arguments, on all levels together: 10,000 bindings with a key. Decoded they take up to 8
MiB and 10 ms; a mebibyte of empty arrays would take 21 MiB and 0.1 s."""
NESTING_MAX = 32
"""Limit of the nesting of the arguments: more than any plugin's settings need, and far below the interpreter's
recursion limit."""
_TYPE_NAMES = {**TYPE_NAMES, "object": "a JSON object", "null": "null"}


def check_size(verb: str, text: str) -> None:
    """Check the size of a verb's arguments before they are decoded.

    Raises LimitExceeded: they are too long. ConfigError: they hold too many values.
    """
    if len(text) > ARGUMENTS_BYTES_MAX or len(text.encode()) > ARGUMENTS_BYTES_MAX:
        raise LimitExceeded(f"the arguments of {verb} have more than {ARGUMENTS_BYTES_MAX} bytes")
    # Each value but the first follows one of these characters. Characters inside strings count too, but there are few.
    if sum(map(text.count, ",[{")) > VALUES_MAX:
        raise ConfigError(f"the arguments of {verb} hold more than {VALUES_MAX} values")


def decode_arguments(verb: Verb[A, Any], text: str) -> A:
    """Decode a verb's arguments from JSON.

    Raises:
        Errors of `check_size`. ConfigError: not a JSON object, nested too deeply, or an argument is missing or of
            another type; ConfigUnknownKey: the verb does not take an argument.
    """
    check_size(verb.name, text)
    try:
        decoded = msgspec.json.decode(text)  # Stricter than the standard library: no NaN, no lone surrogates.
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"the arguments of {verb.name} are not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise ConfigError(f"the arguments of {verb.name} must be a JSON object")
    if _is_deeper(decoded, NESTING_MAX):
        raise ConfigError(f"the arguments of {verb.name} are nested deeper than {NESTING_MAX} levels")
    fields = fields_of(verb.arguments)
    takes = [field.name for field in fields]
    for name in sorted(decoded.keys() - takes):
        raise ConfigUnknownKey(f'{verb.name} takes no argument "{name[:80]}"{did_you_mean(name, takes)}')
    return verb.arguments(**{field.name: _checked(field, decoded) for field in fields if _is_given(field, decoded)})


def _is_given(field: Field, decoded: dict[str, Any]) -> bool:
    """Whether an argument is given. Raises ConfigError: it is missing."""
    if field.required and field.name not in decoded:
        raise ConfigError(f'the argument "{field.name}" is missing')
    return field.name in decoded


def _checked(field: Field, decoded: dict[str, Any]) -> Any:
    """An argument of the right type. Raises ConfigError."""
    value = decoded[field.name]
    try:
        return msgspec.convert(value, field.type)
    except msgspec.ValidationError as error:
        said = in_words(str(error), value, plain_types(field.type), _TYPE_NAMES)
        raise ConfigError(f'the argument "{field.name}" {said}') from error


def _is_deeper(value: list[Any] | dict[str, Any], levels: int) -> bool:
    """Whether a JSON array or object is nested deeper than `levels`."""
    parts: list[Any] = [value]
    for _ in range(levels):
        items = (part.values() if isinstance(part, dict) else part for part in parts)
        parts = [item for item in chain.from_iterable(items) if isinstance(item, dict | list)]
    return bool(parts)
