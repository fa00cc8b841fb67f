"""Every client reads the same bytes alike, and writes the same records as the same bytes."""

from __future__ import annotations

import base64
import json
from uuid import UUID

import pytest
from agents import VECTORS, AgentProcess, Refused, Said
from spoken import content_of, everything

from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record

pytestmark = pytest.mark.timeout(1_200)  # A first build of the clients is a part of it.

MANIFEST = json.loads((VECTORS / "manifest.json").read_text(encoding="utf-8"))


def test_every_batch_vector_is_read_as_the_manifest_says(agent: AgentProcess) -> None:
    found = {entry["file"]: decoded(agent, entry) for entry in MANIFEST["batches"]}
    compressed = [file for file in found if "zstd" in file]
    if all(found[file] == "message.unsupported" for file in compressed):
        # A client may do without zstd, if it says so each time.
        found = {file: content for file, content in found.items() if file not in compressed}
    entries = {entry["file"]: entry for entry in MANIFEST["batches"]}
    assert [file for file, content in found.items() if content != expected(entries[file])] == []


def decoded(agent: AgentProcess, entry: Said) -> object:
    try:
        answer = agent.ask("decode", path=str(VECTORS / entry["file"]))
    except Refused as refused:
        return refused.code
    return [(content_of(record), record["offset"]) for record in answer["records"]], answer["header"]


def expected(entry: Said) -> object:
    if "error" in entry:
        return entry["error"]
    # An object has each name once; the clients' own tests look at names that repeat.
    records = [{**record, "headers": dict(record["headers"])} for record in entry["records"]]
    return [(content_of(record), record["offset"]) for record in records], entry["header"]


def test_every_frame_vector_is_read_as_the_manifest_says(agent: AgentProcess) -> None:
    wrong = []
    for entry in MANIFEST["frames"]:
        try:
            found: object = agent.ask("frame", path=str(VECTORS / entry["file"]))
        except Refused as refused:
            found = refused.code
        names = ("member", "correlation", "batches", "fields")
        said = entry["error"] if "error" in entry else {name: entry[name] for name in names}
        if found != said:
            wrong.append(entry["file"])
    assert wrong == []


def test_equal_records_are_encoded_as_equal_bytes(agent: AgentProcess) -> None:
    wrong = []
    for entry in MANIFEST["batches"]:
        if entry.get("canonical") and not names_repeat(entry):
            base_id = UUID(int=entry["header"]["idHigh"] << 64 | entry["header"]["idLow"])
            brings_ids = [record["id"] for record in entry["records"]] != counted(base_id, len(entry["records"]))
            records = [
                {**record, "headers": dict(record["headers"]), "id": record["id"] if brings_ids else None}
                for record in entry["records"]
            ]
            batch = agent.ask("encode", records=records, base_id=str(base_id))["batch"]
            if base64.b64decode(batch) != (VECTORS / entry["file"]).read_bytes():
                wrong.append(entry["file"])
    assert wrong == []


def names_repeat(entry: Said) -> bool:
    return any(len(record["headers"]) != len(dict(record["headers"])) for record in entry["records"])


def counted(base_id: UUID, count: int) -> list[str]:
    return [str(UUID(int=(base_id.int + index) % 2**128)) for index in range(count)]


def test_records_are_encoded_as_the_python_client_does(agent: AgentProcess, language: str) -> None:
    said = everything(language)
    records = [
        Record(
            value=base64.b64decode(record["value"]) if record["value"] is not None else None,
            key=base64.b64decode(record["key"]) if record["key"] is not None else None,
            routing_key=record["routing_key"],
            labels=record["labels"],
            headers=tuple((n, base64.b64decode(v) if v is not None else None) for n, v in record["headers"].items()),
            id=UUID(record["id"]),
            timestamp_ms=record["timestamp_ms"],
            priority=record["priority"],
            ttl_ms=record["ttl_ms"],
        )
        for record in said
    ]
    expected = build_from_records(records, base_id=0).message
    assert base64.b64decode(agent.ask("encode", records=said)["batch"]) == bytes(expected)
