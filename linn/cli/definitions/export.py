"""The definitions of a broker, as the `[exchanges]` and `[topics]` of a configuration file.

Laws: equal brokers give equal text, in which exchanges, topics and bindings are sorted; reading the text back gives
what the broker described.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from linn.cli.new_file import write_new
from linn.cli.render.console import print_result
from linn.cli.session import with_client
from linn.client.client import Client
from linn.core.config.decoder import encode_settings, fields_of, known_keys
from linn.core.config.problem import dotted
from linn.core.config.toml_source import Path
from linn.core.config.topic_settings import FROM_DELIVERY, BindingSettings, TopicSettings
from linn.core.errors.tree import ConfigError
from linn.core.security.rule import OWN_PREFIX
from linn.descriptions import ExchangeDescription, TopicDescription

Table = Mapping[str, Any]
Definitions = Mapping[str, Mapping[str, Table]]
"""The tables of a file: "exchanges" and "topics", each by name."""

_QUEUES_ONLY = [field.encode_name for field in fields_of(TopicSettings) if field.name in FROM_DELIVERY]
_STREAMS_ONLY = {key: encode_settings(TopicSettings())[key] for key in ("retention", "retention_bytes")}
"""Settings that only streams have, with their defaults."""


def export(url: str, file: str, *, as_json: bool) -> None:
    """Write the definitions of a broker to a new file, or to stdout for "-". Raises LinnError."""
    found = with_client(url, exported)
    text = json.dumps(found, indent=2) + "\n" if as_json else toml_text(found)
    if file == "-":
        print(text, end="")
        return
    write_new(file, text, mode=0o600)  # The options of a sink may be secrets.
    print_result({"file": file}, f"wrote {file}", as_json=as_json)


async def exported(client: Client) -> Definitions:
    """Ask a broker for an export of its definitions, which its audit trail records. Raises LinnError."""
    found = await client.admin.perform("definitions.export")
    return tables_of(found["exchanges"], found["topics"])


async def definitions(client: Client) -> Definitions:
    """Ask a broker for its exchanges, topics and bindings. Raises LinnError."""
    # All bindings are in the first answer. A topic made or deleted before the second has none, or takes them with it.
    exchanges = await client.admin.exchanges()
    return tables_of(exchanges, await client.admin.topics())


def tables_of(exchanges: Iterable[ExchangeDescription], topics: Iterable[TopicDescription]) -> Definitions:
    """Convert a broker's descriptions to the tables of a file. Raises ConfigError for what TOML can't express."""
    found: dict[str, dict[str, Any]] = {"exchanges": {}, "topics": {}}
    bindings: dict[tuple[str, str], list[Table]] = {}
    for exchange in exchanges:
        alternate = {"alternate": exchange["alternate"]} if exchange["alternate"] is not None else {}
        found["exchanges"][exchange["name"]] = {"type": exchange["type"], **alternate, **exchange["settings"]}
        for made in exchange["bindings"]:
            target = ("topics", made["topic"]) if "topic" in made else ("exchanges", made["exchange"])
            arguments = _arguments(exchange["name"], made["arguments"])
            key = {"key": made["key"]} if made["key"] else {}
            bindings.setdefault(target, []).append({"exchange": exchange["name"], **key, **arguments})
    for topic in topics:
        if topic["name"].startswith(OWN_PREFIX):
            continue  # The broker makes it itself.
        found["topics"][topic["name"]] = _settings(topic["settings"])
    for (top, name), bound in bindings.items():
        if name in found[top]:
            found[top][name]["bindings"] = sorted(bound, key=identity)
    return {top: dict(sorted(tables.items())) for top, tables in found.items()}


def identity(binding: Table) -> tuple[str, str, bytes]:
    """Identify a binding among the bindings of its target. Raises ConfigError for values that JSON does not have."""
    arguments = {name: value for name, value in binding.items() if name not in ("exchange", "key")}
    try:
        return binding["exchange"], binding.get("key", ""), msgspec.json.encode(arguments, order="deterministic")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the arguments of a binding are not plain values: {error}") from error


def _arguments(exchange: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    for taken in known_keys(BindingSettings):
        if taken in arguments:
            raise ConfigError(
                f'a binding of exchange {exchange} has an argument "{taken}": in TOML, that key has another meaning'
            )
    return arguments


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a topic's table without its bindings, and without defaults that have no effect on a topic of its kind."""
    idle = settings["kind"] == "stream", settings["kind"] == "queue"
    return {
        key: value
        for key, value in settings.items()
        if key != "bindings"
        and not (idle[0] and key in _QUEUES_ONLY)
        and not (idle[1] and _STREAMS_ONLY.get(key) == value)
    }


# --- TOML ------------------------------------------------------------------------------------------------------------


def toml_text(found: Definitions) -> str:
    """Return the text of a file. Raises ConfigError for a value that TOML does not have."""
    tables = [_table((top, name), table) for top, named in found.items() for name, table in named.items()]
    return "\n".join(tables)


def _table(path: Path, table: Table) -> str:
    bindings: Sequence[Table] = table.get("bindings", ())
    text = f"[{_dotted_key(path)}]\n{_lines({key: value for key, value in table.items() if key != 'bindings'}, path)}"
    for index, binding in enumerate(bindings):
        text += f"[[{_dotted_key((*path, 'bindings'))}]]\n{_lines(binding, (*path, 'bindings', index))}"
    return text


def _lines(table: Table, path: Path) -> str:
    return "".join(f"{_dotted_key((key,))} = {_value(value, (*path, key))}\n" for key, value in table.items())


def _dotted_key(path: Path) -> str:
    return ".".join(part if dotted((part,)) == part else _string(part) for part in map(str, path))


def _value(value: object, path: Path) -> str:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item, (*path, index)) for index, item in enumerate(value))}]"
    if isinstance(value, dict):
        pairs = [f"{_dotted_key((key,))} = {_value(item, (*path, key))}" for key, item in value.items()]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    raise ConfigError(f"{dotted(path)}: TOML has no {json.dumps(value)}")


def _string(text: str) -> str:
    """Return a basic string: with JSON's escapes, which TOML shares, and code points for other control characters."""
    written = json.dumps(text, ensure_ascii=False)
    return "".join(part if part.isprintable() else f"\\U{ord(part):08x}" for part in written)
