"""The vectors in schema/vectors are what this version writes, and the Python client reads them as they say."""

from __future__ import annotations

import base64
import filecmp
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from linn.core.batch.batch import STAMP_BYTES, BatchLimits, RecordBatch
from linn.core.batch.flat_message import DATA_AT
from linn.core.batch.record import Headers
from linn.core.errors.tree import LinnError

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "schema" / "vectors"
MANIFEST = json.loads((VECTORS / "manifest.json").read_text(encoding="utf-8"))
BATCHES = {entry["file"]: entry for entry in MANIFEST["batches"]}
TYPESCRIPT = ROOT / "clients" / "typescript"


def test_the_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", VECTORS / "generate.py", tmp_path], check=True)
    listed = [Path("manifest.json"), *(Path(entry["file"]) for kind in MANIFEST.values() for entry in kind)]
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.*")) == sorted(listed)
    assert [str(path) for path in listed if not filecmp.cmp(tmp_path / path, VECTORS / path, shallow=False)] == []
    assert sorted(path.relative_to(VECTORS) for path in VECTORS.rglob("*.bin")) == sorted(listed[1:])


@pytest.mark.parametrize(("script", "written"), [("layout.py", "layout.ts"), ("saslprep.py", "stringprep.ts")])
def test_the_tables_of_the_typescript_client_are_what_their_scripts_write(script: str, written: str) -> None:
    command = [sys.executable, "-W", "error", str(TYPESCRIPT / script), "--print"]
    wanted = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert (TYPESCRIPT / "src" / written).read_text(encoding="utf-8") == wanted


def test_every_member_of_frame_has_a_vector_in_each_direction_that_it_goes() -> None:
    page = (ROOT / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")
    between_brokers = re.search(r"^## Between brokers\n.*?^## ", page, re.MULTILINE | re.DOTALL)
    assert between_brokers
    page = page.replace(between_brokers[0], "")  # No client sends or gets them.
    members = {line.removeprefix("### `").removesuffix("`") for line in page.splitlines() if line.startswith("### `")}
    assert {entry["member"] for entry in MANIFEST["frames"] if "member" in entry} == {*members, "unknown"}


@pytest.mark.parametrize("file", BATCHES)
def test_a_batch_vector_holds_what_the_manifest_says(file: str) -> None:
    entry = BATCHES[file]
    if "error" in entry:
        with pytest.raises(LinnError) as raised:
            read(file)
        assert raised.value.code == entry["error"]
        return
    batch = read(file)
    assert batch.count == len(entry["records"]) == entry["header"]["count"]
    for index, said in enumerate(entry["records"]):
        record = batch.record(index)
        assert batch.offset(index) == said["offset"]
        assert headers_say(record.headers) == said["headers"]
        assert repr(record.labels) == repr(said["labels"])
        assert (str(record.id), record.timestamp_ms, text(record.value), text(record.key), record.routing_key) == (
            said["id"], said["timestamp_ms"], said["value"], said["key"], said["routing_key"]
        )  # fmt: skip


def read(file: str) -> RecordBatch:
    """A batch, all of it checked."""
    batch = RecordBatch((VECTORS / file).read_bytes())
    batch.check_crc()
    if batch.offset_span == batch.count:
        batch.verify(BatchLimits())  # A broker takes no other from a producer.
    if any(batch.message[DATA_AT : DATA_AT + STAMP_BYTES]):
        batch.check_stored()
    batch.records()
    return batch


def text(content: bytes | None) -> str | None:
    return base64.b64encode(content).decode() if content is not None else None


def headers_say(headers: Headers) -> list[list[str | None]]:
    return [[name, text(value)] for name, value in headers]
