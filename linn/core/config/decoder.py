"""Decoding of tables of plain values to frozen structs, with every problem named by its full key.

Settings are `msgspec.Struct`s: one default per field, and one line of help in `msgspec.Meta(description=...)`. The same
decoder reads TOML and the admin API, for linn's own settings and for a plugin's. `Meta(extra=...)` may annotate a
field: `live: False` (can't change while the topic exists), `rest: True` (a dict for the table's other keys),
`none: "forever"` (the word for None, if None is a value of its own and not an inherited default), `words: {"x": 7}`
(words for values that are not written otherwise).

Laws: nothing is converted silently ("1" is not 1, 1 is not true); the unit is in the value or in the key.
"""

from __future__ import annotations

import functools
import math
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from linn.core.batch.steps import Steps
from linn.core.config.problem import FirstProblem, Problems
from linn.core.config.toml_source import Path
from linn.core.config.units import format_duration_ms, format_size_bytes, parse_duration_ms, parse_size_bytes
from linn.core.env.secret import HOW_TO_WRITE_SECRETS, MASK, Secret
from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import ConfigUnknownKey

S = TypeVar("S", bound=msgspec.Struct)
Field = msgspec.structs.FieldInfo

_BYTES = re.compile(r"(?:.*_)?bytes(?:_max|_min)?")
TYPE_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "array": "an array",
    "object": "a table",
}
_EXAMPLES = {"ms": "30s", "s": "30s", "bytes": "256MiB"}


class _Known(NamedTuple):
    """A field prepared for decoding, cached per struct because a topic may have thousands of bindings."""

    field: Field
    types: Sequence[Any]
    """The allowed types, without `Annotated` and unions."""
    struct: type[msgspec.Struct] | None
    """The struct of a value that is a table."""
    item: type[msgspec.Struct] | None
    """The struct of the items of an array of tables."""
    unit: str | None
    words: Mapping[object, object]
    """Values by the words that mean them."""
    holds_secrets: bool
    """Whether the value may be a reference to a secret, or have some in it."""


def decode_items(
    settings: type[S], table: Mapping[str, Any], path: Path, problems: FirstProblem
) -> Steps[dict[str, Any]]:
    """Decode the items of a table's arrays of tables, one step per item: an array may have ten thousand.

    `decode_settings` accepts the decoded items. Raises the first error in an item.
    """
    decoded = dict(table)
    for key, known in _known(settings).items():
        if known.item is None or not isinstance(raw := table.get(key), list):
            continue
        items: list[object] = []
        for index, item in enumerate(raw):
            items.append(decode_settings(known.item, item, (*path, key, index), problems))
            yield
        decoded[key] = items
    return decoded


def decode_settings(
    settings: type[S],
    table: object,
    path: Path,
    problems: Problems,
    *,
    also_known: Iterable[str] = (),
    partial: bool = False,
) -> S | None:
    """Decode `table` (at `path`) to a struct; None after adding its errors to `problems`.

    Every key is checked, so that one call finds all problems. `also_known`: keys removed from the table before; they
    only help to name the nearest valid key. Items of arrays may be decoded already. `partial`: return a struct of the
    valid keys, with defaults for the rest, so that it can be checked against other tables; None only if there is no
    such struct.
    """
    if not isinstance(table, dict):
        problems.add(path, "must be a table")
        return None
    errors_before = problems.error_count
    fields, rest = _known(settings), rest_of(settings)
    values: dict[str, Any] = {}
    for key, raw in table.items():
        known = fields.get(key)
        if known is not None and known.field is not rest:
            _decode_field(known, raw, (*path, key), values, problems, partial)
        elif rest is not None:
            values.setdefault(rest.name, {})[key] = raw
        else:
            meant = did_you_mean(key, [*fields, *also_known])
            problems.add((*path, key), f"unknown key{meant}", error=ConfigUnknownKey)
    for key, known in fields.items():
        if known.field.required and key not in table:
            problems.add(path, f'the key "{key}" is missing')
    if problems.error_count > errors_before and not partial:
        return None
    try:
        return settings(**values)
    except (ValueError, TypeError) as error:
        if problems.error_count == errors_before:
            problems.add(path, str(error))
        return None


def encode_settings(settings: msgspec.Struct) -> dict[str, Any]:
    """The table that `decode_settings` turns into an equal struct: plain values, with units if the keys have none.

    Fields that are None without a word for it are left out: they are inherited.
    """
    table: dict[str, Any] = {}
    rest = rest_of(type(settings))
    for field in fields_of(type(settings)):
        value = getattr(settings, field.name)
        if field is rest:
            table.update(value)
        else:
            encoded = encode_value(field, value)
            if encoded is not None:
                table[field.encode_name] = encoded
    return table


def encode_each(items: Iterable[msgspec.Struct]) -> Steps[list[dict[str, Any]]]:
    """Encode many structs, one step for each."""
    tables: list[dict[str, Any]] = []
    for item in items:
        tables.append(encode_settings(item))
        yield
    return tables


def encode_value(field: Field, value: Any) -> Any:
    """A field's value as it is written in TOML; None if the key is left out."""
    unit = unit_of(field.name)
    if value is None:
        return extra_of(field).get("none")
    if isinstance(value, int):
        for word, meant in extra_of(field).get("words", {}).items():
            if meant == value:
                return word
    if isinstance(value, Secret):
        return MASK
    if isinstance(value, msgspec.Struct):
        return encode_settings(value)
    if isinstance(value, tuple | list):
        return [encode_value(field, item) for item in value]
    if isinstance(value, dict):
        return _without_secrets(value)
    if unit is None or unit_of(field.encode_name) is not None:
        return value
    if unit == "bytes":
        return format_size_bytes(value)
    return format_duration_ms(value if unit == "ms" else round(value * 1000))


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_secrets(item) for key, item in value.items()}
    return MASK if isinstance(value, Secret) else value


@functools.cache
def fields_of(settings: type[msgspec.Struct]) -> tuple[Field, ...]:
    """The fields of a struct, cached because finding them takes 0.3 ms and a file may hold thousands of topics."""
    return msgspec.structs.fields(settings)


@functools.cache
def rest_of(settings: type[msgspec.Struct]) -> Field | None:
    """The field for a table's other keys, if there is one; cached."""
    return next((field for field in fields_of(settings) if extra_of(field).get("rest")), None)


@functools.cache
def _known(settings: type[msgspec.Struct]) -> Mapping[str, _Known]:
    """The fields of a struct, by the keys of their tables."""
    return {field.encode_name: _known_field(field) for field in fields_of(settings)}


def _known_field(field: Field) -> _Known:
    types = plain_types(field.type)
    struct = next(filter(_is_struct, types), None)
    arrays = [typing.get_args(plain)[0] for plain in types if typing.get_origin(plain) in (tuple, list)]
    item = next(filter(_is_struct, arrays), None)
    extra = extra_of(field)
    words = {**extra.get("words", {}), **({extra["none"]: None} if "none" in extra else {})}
    return _Known(field, types, struct, item, unit_of(field.name), words, _holds_secrets(field.type))


def _holds_secrets(annotation: Any) -> bool:
    parts = plain_types(annotation)
    return Secret in parts or any(_holds_secrets(arg) for part in parts for arg in typing.get_args(part))


@functools.cache
def unit_of(name: str) -> str | None:
    """The unit at the end of a name: "ms", "s", "bytes", or None."""
    if name.endswith("_ms"):
        return "ms"
    if name.endswith("_s"):
        return "s"
    return "bytes" if _BYTES.fullmatch(name) else None


def meta_of(field: Field) -> list[msgspec.Meta]:
    """The `msgspec.Meta`s of a field, from the outside in."""
    return list(_metas(field.type))


def extra_of(field: Field) -> dict[str, Any]:
    """linn's own annotations of a field."""
    return {key: value for meta in meta_of(field) for key, value in (meta.extra or {}).items()}


def _metas(annotation: Any) -> Iterator[msgspec.Meta]:
    if hasattr(annotation, "__metadata__"):
        yield from (meta for meta in annotation.__metadata__ if isinstance(meta, msgspec.Meta))
        yield from _metas(annotation.__origin__)
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            yield from _metas(part)


def plain_types(annotation: Any) -> list[Any]:
    """The types that an annotation allows, without `Annotated` and unions; a Literal stays as it is."""
    if hasattr(annotation, "__metadata__"):
        return plain_types(annotation.__origin__)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [plain for part in typing.get_args(annotation) for plain in plain_types(part)]
    return [annotation]


def _decode_field(
    known: _Known, raw: object, path: Path, values: dict[str, Any], problems: Problems, partial: bool
) -> None:
    """Put a field's decoded value into `values`, or add its error to `problems`."""
    name = known.field.name
    if known.struct is not None:
        struct = decode_settings(known.struct, raw, path, problems, partial=partial)
        if struct is not None:
            values[name] = struct
    elif known.item is not None:
        items = _decode_structs(known.item, raw, path, problems, partial)
        if None not in items:
            values[name] = items
    else:
        try:
            values[name] = _decode_value(known, raw)
        except ValueError as error:
            problems.add(path, str(error))


def _decode_structs(item: type[S], raw: object, path: Path, problems: Problems, partial: bool) -> tuple[S | None, ...]:
    if not isinstance(raw, list | tuple):
        problems.add(path, f"must be an array of tables: [[{path[-1]}]]")
        return ()
    return tuple(
        table if type(table) is item else decode_settings(item, table, (*path, index), problems, partial=partial)
        for index, table in enumerate(raw)
    )


def _is_struct(plain: Any) -> bool:
    return isinstance(plain, type) and issubclass(plain, msgspec.Struct) and plain is not Secret


def _decode_value(known: _Known, raw: object) -> object:
    """Check one value against its field, units included.

    Raises:
        ValueError: the error, worded as the end of one line.
    """
    _refuse_odd_numbers(raw)
    if isinstance(raw, str) and raw in known.words:
        return known.words[raw]
    if known.unit is not None and (int in known.types or float in known.types):
        raw = _without_unit(known.field, raw, known.unit)
    if known.holds_secrets:
        return _decode_with_secrets(known, raw)
    try:
        return msgspec.convert(raw, known.field.type)
    except msgspec.ValidationError as error:
        raise ValueError(in_words(str(error), raw, known.types)) from error


def _decode_with_secrets(known: _Known, raw: object) -> object:
    """Check a value that may have secrets in it, which no error repeats. Raises ValueError."""
    if isinstance(raw, str) and str not in known.types:
        raise ValueError(f"is a secret, and stands here in plain text: {HOW_TO_WRITE_SECRETS}")
    _refuse_masks(raw, "")
    try:
        return msgspec.convert(raw, known.field.type)
    except msgspec.ValidationError as error:
        raise ValueError(in_words(str(error), Secret(file=MASK), known.types)) from None


def _refuse_masks(raw: object, at: str) -> None:
    """Refuse the marks that an export has in the place of secrets. Raises ValueError."""
    if raw == MASK:
        raise ValueError(f"{at}is {MASK}, as exports show a secret: {HOW_TO_WRITE_SECRETS}")
    if isinstance(raw, dict):
        for key, value in raw.items():
            _refuse_masks(value, f"{at.removesuffix(' ')}.{key} ".removeprefix("."))


def _without_unit(field: Field, raw: object, unit: str) -> object:
    if isinstance(raw, str):
        if unit == "bytes":
            return parse_size_bytes(raw)
        duration_ms = parse_duration_ms(raw)
        if unit == "ms":
            return duration_ms
        return duration_ms // 1000 if duration_ms % 1000 == 0 else duration_ms / 1000
    if unit_of(field.encode_name) is None and isinstance(raw, int | float) and not isinstance(raw, bool):
        raise ValueError(f'{raw} of what? Write it with its unit, such as "{_EXAMPLES[unit]}"')
    return raw


def _refuse_odd_numbers(raw: object) -> None:
    """Refuse TOML numbers that no setting can use: infinities, NaN, and whole numbers beyond 64 bits."""
    if isinstance(raw, float) and not math.isfinite(raw):
        raise ValueError(f"must be a finite number, not {raw}")
    if isinstance(raw, int) and not -(1 << 63) <= raw < 1 << 63:
        raise ValueError("the number does not fit into 64 bits")
    if isinstance(raw, list):
        for item in raw:
            _refuse_odd_numbers(item)


def in_words(text: str, raw: object, allowed: Sequence[Any], names: Mapping[str, str] = TYPE_NAMES) -> str:
    """Turn a msgspec message into the end of a sentence about a value; `names`: names of types in words."""
    for plain in allowed:
        if typing.get_origin(plain) is typing.Literal and isinstance(raw, str):
            options = [str(option) for option in typing.get_args(plain)]
            listed = ", ".join(f'"{option}"' for option in options)
            return f'must be one of {listed}, not "{raw[:40]}"{did_you_mean(raw, options)}'
    match = re.fullmatch(r"Expected `([^`]*)`(.*?)(?:, got `([^`]*)`)?(?: - at `\$(.*)`)?", text)
    if match is None:
        return text.partition(" - at `$")[0] if isinstance(raw, Secret) else f"{text}: {raw!r:.60}"
    wanted = [names.get(name, name) for name in match[1].split(" | ") if name != "null"]
    got = names.get(match[3], match[3]) if match[3] else f"{raw!r:.60}"
    item = f" (item {match[4]})" if match[4] else ""
    return f"must be {' or '.join(wanted)}{match[2]}, not {got}{item}"


def check_shape(settings: object) -> str | None:
    """The reason why a class can't be a settings struct, worded as the end of one line; None if it can."""
    if not (isinstance(settings, type) and issubclass(settings, msgspec.Struct)):
        return "its settings are not a msgspec.Struct class"
    if not settings.__struct_config__.frozen:
        return f"{settings.__name__} is not frozen"
    missing = [field.name for field in fields_of(settings) if field.required]
    return f"{settings.__name__}.{missing[0]} has no default" if missing else None


def known_keys(settings: type[msgspec.Struct]) -> list[str]:
    """The keys that a table for these settings may have."""
    return [field.encode_name for field in fields_of(settings) if field is not rest_of(settings)]
