"""The documentation says all there is, and what it says is true: completeness, links, and what examples say.

The README, the tutorial and the how-to pages are run by tests/examples; the pages that are made from the code are held
by `config/test_reference_pages.py` and `cli/test_cli_reference.py`.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints, is_typeddict

import msgspec
import pytest
import trio
from code_block import CodeBlock, code_blocks

import linn
from linn import descriptions, verbs
from linn.api import Principal
from linn.core.batch import schema
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.broker.broker import running_broker
from linn.core.config.config import check_config, load_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.env.real.env import RealEnv
from linn.core.errors.codes import all_errors
from linn.core.errors.tree import LinnError
from linn.core.plugins.manager import PluginManager, built_in, installed

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def reference(name: str) -> str:
    return (DOCS / "reference" / f"{name}.md").read_text(encoding="utf-8")


# --- blocks of code --------------------------------------------------------------------------------------------------


BLOCKS = [block for page in PAGES for block in code_blocks(page)]
PYTHON = [block for block in BLOCKS if block.language == "python"]
BROUGHT = re.compile(r"^(\[plugins\]|\[interceptors\.redact\]|\[project\.)", re.MULTILINE)
"""TOML of plugins, which the tests of their pages check."""
TOML = [block for block in BLOCKS if block.language == "toml" and not BROUGHT.search(block.text)]
PLUGIN_PAGE = DOCS / "how-to" / "write-a-plugin.md"


# --- every name has its place ----------------------------------------------------------------------------------------


def import_everything() -> None:
    for module in pkgutil.walk_packages(linn.__path__, "linn."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def test_every_error_has_its_cause_and_a_way_out() -> None:
    import_everything()
    sections = dict(re.findall(r"^### `([a-z_.]+)`\n(.*?)(?=^##|\Z)", reference("errors"), re.MULTILINE | re.DOTALL))
    for code, error in all_errors().items():
        section = sections[code]
        assert f"`{error.__name__}`" in section, code
        assert f"Retriable: {'yes' if error.retriable else 'no'}." in section, code
        assert re.search(r"^- \*\*Cause:\*\* \w", section, re.MULTILINE), code
        assert re.search(r"^- \*\*What to do:\*\* \S", section, re.MULTILINE), code


def test_every_message_is_on_the_protocol_page() -> None:
    frame = schema.load("protocol").Frame
    members = [field.name for field in frame.schema.node.struct.fields if field.discriminantValue != 0xFFFF]
    page = reference("protocol")
    assert len(members) > 25
    assert [member for member in members if f"\n### `{member}`\n" not in page] == []


def test_every_admin_verb_is_on_the_protocol_page_and_no_other() -> None:
    rows = dict(re.findall(r"^\| `([a-z]+\.[a-z]+)` \| (.*?) \|", reference("protocol"), re.MULTILINE))
    assert sorted(rows) == sorted(verbs.VERBS)
    rows["exchange.unbind"] = rows["exchange.bind"]
    for name, verb in verbs.VERBS.items():
        takes = {field.name for field in msgspec.structs.fields(verb.arguments)}
        assert takes <= set(re.findall(r"`(\w+)`", rows[name])), name


# --- links -----------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the page's headings."""
    outside = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+)$", outside, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    outside = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", outside):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            yield f"{name_of(page)}: {target}"


def test_links_lead_somewhere() -> None:
    assert [broken for page in PAGES for broken in broken_links(page)] == []


def test_every_page_can_be_found_from_the_front_page_or_from_an_index_that_it_links_to() -> None:
    front = (DOCS / "index.md").read_text(encoding="utf-8")
    for page in sorted({*DOCS.rglob("*.md")} - {DOCS / "index.md"}):
        index = page.parent / "index.md"
        listed = index.is_file() and f"({page.name})" in index.read_text(encoding="utf-8")
        place = (index if listed else page).relative_to(DOCS).as_posix()
        assert f"({place})" in front, name_of(page)


IN_WORDS = {
    *("TopicSettings", "BindingDescription", "RecordStates"),
    *("GroupDescription", "QueueDetails", "TransactionDescription"),
}
"""Shapes that the page describes as another one with more keys or other ones, or elsewhere, or as parts of others."""


def objects_in(text: str) -> Iterator[set[str]]:
    """The keys of each object that a page shows, `{"key", "list": [{"key"}]}`; the inner ones are objects as well."""
    for begin in (found.start() for found in re.finditer(r"\{\"", text)):
        keys, depth, at = set(), 0, begin
        for part in re.finditer(r'[{}\[\]]|"(\w+)"', text[begin:]):
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(part[0], 0)
            if part[1] and depth == 1:
                keys.add(part[1])
            at = begin + part.end()
            if not depth:
                break
        assert at > begin
        yield keys


def test_the_protocol_names_every_key_of_what_the_admin_verbs_answer() -> None:
    shown = [*objects_in((DOCS / "reference" / "protocol.md").read_text(encoding="utf-8"))]
    known = vars(descriptions) | vars(verbs)
    shapes = {name: shape for name, shape in known.items() if is_typeddict(shape)}
    assert len(shapes) > 20
    assert {*shapes} >= IN_WORDS
    missing = [name for name, shape in shapes.items() if {*get_type_hints(shape)} not in shown]
    assert [name for name in missing if name not in IN_WORDS] == []


# --- examples --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", TOML, ids=str)
def test_toml_is_a_configuration_without_errors_or_warnings(block: CodeBlock) -> None:
    config, problems = check_config(TomlSource(block.text, str(block)), built_in())
    assert [problems.describe(problem) for problem in problems.found] == []
    assert config is not None


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_is_python(block: CodeBlock) -> None:
    compile(block.text, str(block), "exec", flags=0x2000)  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


@pytest.fixture
def by_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[TomlSource, PluginManager]:
    """The configuration of the page about plugins, and plugins with its own among them."""
    files = {block.title: block for block in code_blocks(PLUGIN_PAGE)}
    (tmp_path / "by_length.py").write_text(files["by_length.py"].text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    block = files["linn.toml"]
    listener = f"[broker]\ndata_dir = '{tmp_path}/data'\n[listeners.native]\naddress = 'unix:{tmp_path}/s'\n"
    source = TomlSource(block.text + listener, str(block))
    ours = [entry for entry in installed() if entry.dist and entry.dist.name == "linn"]
    return source, PluginManager(plugin_settings(source), ours)


async def test_the_plugin_on_the_plugins_page_routes(by_length: tuple[TomlSource, PluginManager]) -> None:
    config = load_config(*by_length)
    with trio.fail_after(10):
        async with running_broker(config, RealEnv(), by_length[1]) as broker:
            (shown,) = json.loads(await broker.gateway.session(Principal("test")).perform("exchange.list", "{}"))
            assert (shown["type"], len(shown["bindings"])) == ("by-length", 2)
            for key, topic in (("ab", "even"), ("abc", "odd")):
                batch = build_from_records([Record(value=b"", routing_key=key)], base_id=1)
                assert [name for name, _ in broker.router("spread").route(batch)] == [topic]
            unbind = {"exchange": "spread", "topic": "odd", "key": "1"}
            await broker.gateway.session(Principal("test")).perform("exchange.unbind", json.dumps(unbind))
            assert broker.router("spread").route(batch) == []


def test_the_plugin_on_the_plugins_page_refuses_what_it_says(by_length: tuple[TomlSource, PluginManager]) -> None:
    source, plugins = by_length
    assert check_config(source, plugins)[1].found == []
    with pytest.raises(LinnError, match="a number below 2"):
        load_config(TomlSource(source.text.replace('key = "1"', 'key = "2"'), source.file), plugins)


# --- the exchange on the protocol page -------------------------------------------------------------------------------


def hex_messages() -> list[bytes]:
    """The messages of the protocol page's example, whose lines are numbered without a gap."""
    found = []
    for block in BLOCKS:
        if block.language == "hex" and block.page.name == "protocol.md":
            lines = re.findall(r"^ *(\d+)  ((?:[0-9a-f]{2}(?: {1,2}|$)){8,16})", block.text, re.MULTILINE)
            assert [int(place) for place, _ in lines] == list(range(0, 16 * block.text.count("\n"), 16))
            found.append(bytes.fromhex("".join(octets for _, octets in lines)))
    return found


async def test_the_exchange_on_the_protocol_page_is_what_a_broker_answers(tmp_path: Path) -> None:
    hello, welcome, publish, batch, published, failed = hex_messages()
    nowhere = publish.replace(b"\x02\0\0\0\0\0\0\0\x01\0\x07", b"\x03\0\0\0\0\0\0\0\x01\0\x07")
    nowhere = nowhere.replace(b"\x52\0\0\0greetings", b"\x42\0\0\0nowhere\0\0")
    kinds = built_in()
    toml = (
        f"[broker]\ndata_dir = '{tmp_path}/data'\n[listeners.native]\naddress = 'unix:{tmp_path}/s'\n[topics.greetings]"
    )
    config = load_config(TomlSource(toml, "protocol.md"), kinds)
    with trio.fail_after(10):
        async with running_broker(config, RealEnv(), kinds):
            async with await trio.open_unix_socket(f"{tmp_path}/s") as stream:
                for sent, answer in ((hello, welcome), (publish + batch, published), (nowhere + batch, failed)):
                    await stream.send_all(sent)
                    received = b""
                    while len(received) < len(answer):
                        received += await stream.receive_some()
                    if answer is welcome:  # The producer id depends on the time of the start, its key on a secret.
                        received = received[:72] + welcome[72:88] + received[88:]
                    if answer is published:  # So do the epoch and the topic's id.
                        received = received[:72] + published[72:76] + received[76:80] + published[80:96] + received[96:]
                    assert received == answer
