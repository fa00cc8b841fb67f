"""Writes `src/layout.ts`: where each field of linn's control messages and routes lies, as the schemas have it.

    python clients/typescript/layout.py [--print]

Run it when `schema/` has changed; the tests of linn fail where that was forgotten. The client's own reader of Cap'n
Proto needs nothing else, so that it can check everything that a peer sent before it believes it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from linn.core.batch import schema

TARGET = Path(__file__).resolve().parent / "src" / "layout.ts"
KINDS = {"bool": 1, "uint16": 16, "uint32": 32, "uint64": 64, "int32": 32, "int64": 64, "float64": 64, "enum": 16}
"""Bits of each kind of number that the schemas use."""
ROUTES = ("Label", "Pair", "Routes")
HEAD = """\
// Where each field lies, as schema/*.capnp has it. Written by layout.py: change the schema, not this file.
//
// A number is [kind, place in bytes (a bool: in bits), default unless 0], a pointer [kind, index, struct of a list].

"""


def short(kind: str) -> str:
    """The name of a kind of number in the table; enums are numbers."""
    return {"bool": "bool", "enum": "u16"}.get(kind) or kind.replace("uint", "u").replace("int", "i").replace(
        "float", "f"
    )


def slot(field: Any, structs: dict[int, str]) -> list[Any]:
    """One field's entry."""
    offset, kind = field.slot.offset, str(field.slot.type.which())
    if kind in KINDS:
        default = 0 if kind == "enum" else getattr(field.slot.defaultValue, kind)
        place = offset if kind == "bool" else offset * KINDS[kind] // 8
        return [short(kind), place, *([default] if default else [])]
    if kind == "text":
        return ["text", offset]
    assert kind == "list", f"control messages have no {kind}"
    item = field.slot.type.list.elementType
    item_kind = str(item.which())
    if item_kind == "struct":
        return ["structs", offset, structs[item.struct.typeId]]
    return [short(item_kind) + "s", offset]


def fields_of(node: Any, structs: dict[int, str], nodes: dict[int, Any]) -> Iterator[tuple[str, list[Any]]]:
    """A struct's fields, those of its groups among them."""
    if node.struct.discriminantCount:
        yield "which", ["u16", node.struct.discriminantOffset * 2]
    for field in node.struct.fields:
        if str(field.which()) == "group":
            yield from fields_of(nodes[field.group.typeId], structs, nodes)
        elif str(field.slot.type.which()) != "data":  # Which brokers alone send, to one another.
            yield str(field.name), slot(field, structs)


def modules() -> dict[str, Any]:
    """Every struct of a schema by its name."""
    protocol, batch = schema.load("protocol"), schema.load("batch")
    found = {name: getattr(batch, name) for name in ROUTES}
    found |= {name: value for name, value in sorted(vars(protocol).items()) if hasattr(value, "new_message")}
    del found["Frame"]
    return found


def layout() -> str:
    """The whole file."""
    found = modules()
    structs = {int(module.schema.node.id): name for name, module in found.items()}
    lines = [HEAD + "export const STRUCTS = {"]
    for name, module in found.items():
        node = module.schema.node
        nodes = {}
        if name == "Label":
            value = module.schema.fields["value"].schema.node
            nodes[value.id] = value
        lines.append(f"  {name}: {{")
        lines.append(f"    words: {node.struct.dataWordCount},")
        lines.append(f"    pointers: {node.struct.pointerCount},")
        lines.append("    fields: {")
        lines += [f"      {field}: {json.dumps(entry)}," for field, entry in fields_of(node, structs, nodes)]
        lines += ["    },", "  },"]
    lines += [
        "} as const;",
        "",
        "/** The members of Frame by their number; null: without content. */",
        "export const MEMBERS = [",
    ]
    lines += [f"  {member}," for member in members(structs)]
    lines += ["] as const;", ""]
    return "\n".join(lines)


def members(structs: dict[int, str]) -> Iterator[str]:
    """Frame's union, in order."""
    frame = schema.load("protocol").Frame.schema.node
    in_union = [field for field in frame.struct.fields if field.discriminantValue != 0xFFFF]
    for number, field in enumerate(in_union):
        assert field.discriminantValue == number, "members are numbered without a gap"
        kind = str(field.slot.type.which())
        name = json.dumps(structs[field.slot.type.struct.typeId]) if kind == "struct" else "null"
        yield f'["{field.name}", {name}]'


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(layout())
    else:
        TARGET.write_text(layout(), encoding="utf-8")
