"""docs/reference/configuration.md and hooks.md, rendered from the settings' structs and the hooks' docstrings.

`python tests/reference_pages configuration` prints the first, `... hooks` the second.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Mapping

import msgspec

from linn.core.config.decoder import encode_value, extra_of, meta_of, plain_types, unit_of
from linn.core.config.service_tables import topic_tables
from linn.core.config.tables import TABLES
from linn.core.config.topic_settings import BindingSettings, TopicSettings
from linn.core.config.units import format_size_bytes
from linn.core.env.secret import Secret
from linn.core.plugins import hookspecs
from linn.core.plugins.manager import PluginManager
from linn.core.ports.observer import Observer

_INTRO = """# Configuration

One TOML file configures a broker; `linn check FILE` shows the resulting configuration and all problems of the file.
Without a file a broker has the defaults below. (This page is made from the help in the settings' structs:
`python tests/reference_pages configuration`.)

- **The unit stands in the value or in the key.** A key that ends in a unit (`_ms`, `_s`, `bytes`, `bytes_max`) takes a
  plain number in that unit, or text with a unit of its own (`"256MiB"`). Every other duration is text: `"14d"`,
  `"10 seconds"`, `"250ms"`. Durations: ms, s, m, h, d, w, or the words in full. Sizes: B, KiB, MiB, GiB, TiB in steps
  of 1,024; kB, MB, GB, TB in steps of 1,000.
- **Unknown keys are errors**, with the file, the line, the full key and the nearest valid key.
- **Secrets** stand elsewhere: `{ file = "PATH" }`, a file that only its owner may use, `{ env = "NAME" }`, a variable,
  or `{ credential = "NAME" }`, which systemd passes to the service. In plain text they are errors. The broker shows
  `***` in their place, also in exports.
- **Names** of topics, exchanges and tables have 1 to 249 characters of `A-Z a-z 0-9 . _ -`, and don't begin with `__`.
  A name with dots is quoted: `[topics."delays.dead"]`.
- The admin API takes the same keys and values as `[topics.NAME]`. If a row says *fixed*, the key can't change while
  the topic exists, and an attempt fails with `config.not_live`.
"""

_HOOKS_INTRO = """# Hooks

(This page is made from `linn/core/plugins/hookspecs.py`: `python tests/reference_pages hooks`.)
"""


def configuration_page(kinds: PluginManager) -> str:
    """Render the configuration reference, with the settings of every kind in `kinds`."""
    parts = [_INTRO]
    for table, settings in TABLES.items():
        parts.append(_section(table, settings))
        parts.extend(_kind_sections(table, kinds))
        if settings is TopicSettings:
            parts.append(_section("topics.NAME.bindings", BindingSettings))
            parts.extend(
                _section(f"topics.NAME.{table}", own) for table, own in topic_tables(kinds.services.values()).items()
            )
    for name, service in sorted(kinds.services.items()):
        parts.append(_section(name, service.settings))
        parts.extend(_array_sections(name, service.settings))
    return "\n".join(parts)


def _array_sections(table: str, settings: type[msgspec.Struct]) -> list[str]:
    """Render a section for each array of tables in a service's table."""
    items = {
        field.encode_name: typing.get_args(plain)[0]
        for field in msgspec.structs.fields(settings)
        for plain in plain_types(field.type)
        if typing.get_origin(plain) is tuple
    }
    return [
        _section(f"{table}.{key}", item)
        for key, item in items.items()
        if isinstance(item, type) and issubclass(item, msgspec.Struct)
    ]


def hooks_page() -> str:
    """Render the plugin reference: an introduction, each hook, and the events of observers."""
    parts = [_HOOKS_INTRO, inspect.cleandoc(hookspecs.__doc__ or ""), ""]
    for name, hook in hooks().items():
        returns = inspect.signature(hook).return_annotation
        parts += [f"## {name}", "", f"`{name}() -> {returns}`", "", inspect.cleandoc(hook.__doc__ or ""), ""]
    parts += ["## Observer", "", inspect.cleandoc(Observer.__doc__ or ""), ""]
    for name, method in vars(Observer).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            arguments = ", ".join(list(inspect.signature(method).parameters)[1:])
            parts.append(f"- `{name}({arguments})`: {inspect.cleandoc(method.__doc__ or '')}")
    return "\n".join(parts) + "\n"


def hooks() -> Mapping[str, typing.Callable[..., object]]:
    """Return all hooks, by name, in the order of the file."""
    return {name: hook for name, hook in vars(hookspecs).items() if name.startswith("linn_")}


def _kind_sections(table: str, kinds: PluginManager) -> list[str]:
    found: dict[str, list[typing.Any]] = {
        "listeners": list(kinds.protocols.values()),
        "storage": list(kinds.engines.values()),
        "delivery": list(kinds.semantics.values()),
        "exchanges": list(kinds.exchanges.values()),
        "interceptors": list(kinds.interceptors.values()),
        "authenticators": list(kinds.authenticators.values()),
        "authorizers": list(kinds.authorizers.values()),
        "cluster": list(kinds.metadata_stores.values()),
    }
    parts = []
    for kind in sorted(found.get(table, ()), key=lambda kind: str(kind.name)):
        rows = _rows(kind.settings) if kind.settings is not None else []
        title = f"### {table}: `{kind.name}`\n"
        parts.append("\n".join([title, *(rows or ["No settings of its own."]), ""]))
    return parts


def _section(table: str, settings: type[msgspec.Struct]) -> str:
    return "\n".join([f"## {table}", "", inspect.cleandoc(settings.__doc__ or ""), "", *_rows(settings), ""])


def _rows(settings: type[msgspec.Struct]) -> list[str]:
    fields = msgspec.structs.fields(settings)
    if not fields:
        return []
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    return rows + [_row(field) for field in fields]


def _row(field: msgspec.structs.FieldInfo) -> str:
    meta = next((meta.description for meta in meta_of(field) if meta.description), "")
    fixed = " *Fixed.*" if not extra_of(field).get("live", True) else ""
    key = "(other keys)" if extra_of(field).get("rest") else f"`{field.encode_name}`"
    return f"| {key} | {_value_text(field)} | {_default_text(field)} | {meta}{fixed} |".replace("|  |", "| |")


def _value_text(field: msgspec.structs.FieldInfo) -> str:
    """Describe the values that a field takes, in a word or two."""
    names = []
    for plain in plain_types(field.type):
        if typing.get_origin(plain) is typing.Literal:
            names += [f"`{json.dumps(option)}`" for option in typing.get_args(plain)]
        elif plain is not type(None):
            names.append(_type_text(plain, field))
    return " or ".join(names)


def _type_text(plain: typing.Any, field: msgspec.structs.FieldInfo) -> str:
    if plain in (int, float):
        unit = unit_of(field.name)
        if unit is None:
            return "whole number" if plain is int else "number"
        return "size" if unit == "bytes" else "duration"
    if plain in (str, bool):
        return "text" if plain is str else "true or false"
    if plain is Secret:
        return "secret"
    if plain == dict[str, str]:
        return "table of text"
    if plain == dict[str, str | Secret]:
        return "table of text and secrets"
    if plain == dict[str, dict[str, str | Secret]]:
        return "table of tables of text and secrets"
    if typing.get_origin(plain) not in (tuple, list):
        return "any"
    return "array of text" if typing.get_args(plain)[0] is str else "array of tables"


def _default_text(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    if field.default is msgspec.NODEFAULT:
        return ""
    value = encode_value(field, field.default)
    if unit_of(field.name) == "bytes" and isinstance(value, int):
        value = format_size_bytes(value)
    return "" if value is None else f"`{json.dumps(value)}`"
