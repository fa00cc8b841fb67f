from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linn.core.config.config import Config, check_config, load_config, plugin_settings, read_toml
from linn.core.config.toml_source import TomlSource
from linn.core.errors.tree import ConfigError, ConfigUnknownKey, ConfigUnreadable, LinnError, PluginUnknown
from linn.core.plugins.manager import PluginManager

Load = Callable[[str], Config]


# --- what a good file means ------------------------------------------------------------------------------------------


def test_an_empty_file_is_a_broker_that_works(load: Load) -> None:
    config = load("")
    assert [(item.name, item.address, item.protocol) for item in config.listeners.values()] == [
        ("native", "127.0.0.1:5466", "capnp")
    ]
    assert config.broker.data_dir == "linn-data"
    assert config.broker.default_storage in config.storage
    assert config.broker.default_delivery in config.delivery
    assert not config.topics


FULL = """
[broker]
message_bytes_max = "64KiB"
drain_timeout = "1500ms"

[listeners.native]
address = "[::1]:0"
[listeners.teletype]
protocol = "teletype"
address = "unix:linn.sock"
baud = 300

[storage.fast]
engine = "tape"
tape_bytes_max = "2MiB"
rewind_interval_s = "250ms"

[delivery.careful]
semantics = "at-least-once"
lease = "1m"
max_deliveries = 3

[exchanges.flights]
type = "desk"

[topics.delays]
storage = "fast"
delivery = "careful"
dead_letter = "delays.dead"
lease = "10 seconds"
[[topics.delays.bindings]]
exchange = "flights"
key = "late"
urgent = true

[topics."delays.dead"]
kind = "stream"
partitions = 2
retention = "forever"
"""


def test_every_part_of_a_file_arrives_typed(load: Load) -> None:
    config = load(FULL)
    assert config.broker.message_bytes_max == 65_536
    assert config.broker.drain_timeout_s == 1.5
    assert config.listeners["teletype"].settings.baud == 300
    assert config.storage["fast"].kind == "tape"
    assert config.storage["fast"].settings.tape_bytes_max == 2 << 20
    assert config.storage["fast"].settings.rewind_interval_s == 0.25
    assert config.storage["tape"].settings.tape_bytes_max == 1 << 20
    assert config.exchanges["flights"].settings is None
    assert config.topics["delays"].bindings[0].arguments == {"urgent": True}
    assert config.topics["delays.dead"].retention_ms is None


def test_a_topic_inherits_missing_settings_from_broker_and_delivery(load: Load) -> None:
    topics = load(FULL).topics
    assert topics["delays"].lease_ms == 10_000
    assert topics["delays"].max_deliveries == 3
    assert topics["delays"].message_bytes_max == 65_536
    assert topics["delays.dead"].storage == "segmented-log"
    assert topics["delays.dead"].delivery == "at-least-once"
    assert topics["delays.dead"].lease_ms == 30_000


def test_a_group_has_its_own_assignor_or_the_brokers(load: Load) -> None:
    config = load("[broker]\ndefault_assignor = 'by-weight'\n[groups.'any text']\nassignor = 'sticky'\n[groups.plain]")
    assert [config.assignor_of(name) for name in ("any text", "plain", "other")] == ["sticky", "by-weight", "by-weight"]


# --- what a wrong file says ------------------------------------------------------------------------------------------

WRONG = [
    ("[topcis.a]", "1: topcis: unknown key", ConfigUnknownKey, "topics"),
    ("[broker]\ndatadir = 'x'", "2: broker.datadir: unknown key", ConfigUnknownKey, "data_dir"),
    ("[topics.delays]\n\nretenton = '1d'", "3: topics.delays.retenton: unknown key", ConfigUnknownKey, "retention"),
    ("[topics]\na.b.kind = 1\n", "2: topics.a.b: unknown key", ConfigUnknownKey, "known: bindings, "),
    ("[topics.a]\nkind = 'quue'", "2: topics.a.kind: must be one of", ConfigError, '"quue"; did you mean "queue"?'),
    ("[topics.a]\npartitions = 'many'", "2: topics.a.partitions: must be a whole number, not text", ConfigError, ""),
    ("[topics.a]\npartitions = 0", "2: topics.a.partitions: must be a whole number >= 1, not 0", ConfigError, ""),
    ("[topics.a]\nretention = 14", "2: topics.a.retention: 14 of what?", ConfigError, '"30s"'),
    ("[topics.a]\nretention = '2 fortnights'", "2: topics.a.retention: ", ConfigError, "is not a duration"),
    ("[topics.a]\nmax_deliveries = true", "2: topics.a.max_deliveries: must be a whole", ConfigError, "not true"),
    ("[topics.a]\nmessage_bytes_max = '2MiB'", "2: topics.a.message_bytes_max: is over", ConfigError, "1048576"),
    ("[topics.a]\nbytes_max = '1KiB'", "2: topics.a.bytes_max: is less", ConfigError, "1048576"),
    ("[topics.a]\nstorage = 'tpae'", '2: topics.a.storage: there is no storage "tpae"', PluginUnknown, "tape"),
    ("[topics.a]\ndelivery = 'x'", "2: topics.a.delivery: there is no delivery", PluginUnknown, "at-least-once"),
    ("[topics.a]\ndead_letter = 'a'", "2: topics.a.dead_letter: a topic can't be its own", ConfigError, ""),
    ("[topics.a]\nkind = 'both'\nrecords_max = 9", "3: topics.a.records_max: counts", ConfigError, "queue"),
    ("[topics.a]\nrecords_max = 0", "2: topics.a.records_max: must be", ConfigError, "1"),
    ("[topics.a]\noverflow = 'dead-letter'", "2: topics.a.overflow: is", ConfigError, "dead_letter"),
    ("[topics.a]\nkind = 'stream'\noverflow = 'dead-letter'", "3: topics.a.overflow: can be", ConfigError, "queue"),
    ("[topics.aa]\ndead_letter = 'ab'", '2: topics.aa.dead_letter: there is no topic "ab"', ConfigError, "aa"),
    ("[topics.a]\ndead_letter_exchange = 'x'", '2: topics.a.dead_letter_exchange: there is no ex', ConfigError, '"x"'),
    ("[topics.a]\ndead_letter_key = 'k'", "2: topics.a.dead_letter_key: is for the copies", ConfigError, "is none"),
    (
        "[exchanges.x]\ntype = 'desk'\n[topics.b]\n[topics.a]\ndead_letter = 'b'\ndead_letter_exchange = 'x'",
        "6: topics.a.dead_letter_exchange: dead letters go to a topic or an exchange",
        ConfigError,
        "dead_letter is set",
    ),
    ("[topics.a]\nbindings = 'x'", "2: topics.a.bindings: must be an array of tables", ConfigError, "[[bindings]]"),
    ("[[topics.a.bindings]]\nkey = 'x'", '1: topics.a.bindings[0]: the key "exchange" is missing', ConfigError, ""),
    ("[topics.a]\nredelivery_delay = '11m'", "2: topics.a.redelivery_delay: is over", ConfigError, "_max"),
    ("topics = 3", "1: topics: must hold tables", ConfigError, "[topics.NAME]"),
    ("[topics]\na = 3", "2: topics.a: must be a table", ConfigError, ""),
    ("[topics.__a]", "1: topics.__a: names that begin with '__' are reserved", ConfigError, ""),
    ('[exchanges."a b"]\ntype = "desk"', '1: exchanges."a b": a name is made of', ConfigError, ""),
    ("[broker]\nmessage_bytes_max = '9MiB'", "1: broker: message_bytes_max <= batch_bytes_max", ConfigError, ""),
    ("[broker]\ndrain_timeout = inf", "2: broker.drain_timeout: must be a finite number", ConfigError, ""),
    ("[broker]\nconnections_max = 9223372036854775808", "2: broker.connections_max: ", ConfigError, "64 bits"),
    ("[broker]\ndefault_storage = 'tap'", "2: broker.default_storage: there is no storage", PluginUnknown, "tape"),
    ("[broker]\ndefault_assignor = 'stiky'", "2: broker.default_assignor: there is no assig", PluginUnknown, "sticky"),
    ("[groups.g]\nassignor = 'by-wait'", "2: groups.g.assignor: there is no assignor", PluginUnknown, "by-weight"),
    ("[groups.g]\nasignor = 'sticky'", "2: groups.g.asignor: unknown key", ConfigUnknownKey, "assignor"),
    ("[groups]\n'' = {}", '2: groups."": a group\'s name must not be empty', ConfigError, ""),
    ("[listeners.a]\naddress = 'here'", "2: listeners.a.address: 'here' is not HOST:PORT", ConfigError, "unix:PATH"),
    ("[listeners.a]\nprotocol = 'capn'", "2: listeners.a.protocol: no plugin provides", PluginUnknown, "capnp"),
    ("[listeners.a]\nbuad = 50", "2: listeners.a.buad: unknown key", ConfigUnknownKey, "baud"),
    ("[storage.tape]\nenigne = 'tape'", "2: storage.tape.enigne: unknown key", ConfigUnknownKey, "engine"),
    ("[storage.tape]\ncolor = 'red'", "2: storage.tape.color: unknown key", ConfigUnknownKey, "colour"),
    (
        "[storage.fast]\nsize = 3",
        '1: storage.fast: no plugin provides the storage engine "fast"',
        PluginUnknown,
        "tape",
    ),
    ("[exchanges.x]\ntype = 'desk'\nsize = 3", "3: exchanges.x.size: unknown key", ConfigUnknownKey, "type"),
    ("[users.ada]\nscram = 'secret'", "2: users.ada.scram: a password is stored as SCRAM-SHA-256$", ConfigError, ""),
    ("[plugins]\nload = 'x'", "2: plugins.load: must be an array, not text", ConfigError, ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "start", "error", "hint"), WRONG)
def test_a_wrong_file_is_one_line_with_file_line_key_and_hint(
    load: Load, text: str, start: str, error: type[LinnError], hint: str
) -> None:
    with pytest.raises(error) as raised:
        load(text)
    assert raised.value.text.startswith(f"linn.toml:{start}")
    assert hint in raised.value.text
    assert "\n" not in str(raised.value)
    assert raised.type is error


DESK = "[exchanges.flights]\ntype = 'desk'\n[[topics.a.bindings]]\nexchange = 'flights'\n"


def test_a_binding_names_an_exchange_that_exists(load: Load) -> None:
    with pytest.raises(ConfigError, match=r'linn.toml:4: topics.a.bindings\[0\].exchange: .* did you mean "flights"'):
        load(DESK.replace("'flights'", "'fligths'"))


def test_a_binding_that_its_exchange_refuses_is_named_with_the_key_that_was_meant(kinds: PluginManager) -> None:
    _, problems = check_config(TomlSource(f"{DESK}kye = 'late'\n", "linn.toml"), kinds)
    assert [(problem.line, problem.key) for problem in problems.in_order()] == [
        (3, "topics.a.bindings[0]"),
        (5, "topics.a.bindings[0].kye"),
    ]


@pytest.mark.parametrize("address", ["127.0.0.1:5466", "unix:linn.sock"])
def test_two_listeners_share_no_address(load: Load, address: str) -> None:
    with pytest.raises(ConfigError, match=r'linn.toml:4: listeners.b.address: .*is the address of listener "a"'):
        load(f"[listeners.a]\naddress = '{address}'\n[listeners.b]\naddress = '{address}'\n")


def test_many_listeners_may_ask_for_a_free_port(load: Load) -> None:
    config = load("[listeners.a]\naddress = '127.0.0.1:0'\n[listeners.b]\naddress = '127.0.0.1:0'\n")
    assert len(config.listeners) == 2


def test_one_check_finds_all_problems_in_the_order_of_the_file(kinds: PluginManager) -> None:
    text = "[topics.a]\nkind = 'x'\nlaese = '1s'\nretention = 5\n[storage.b]\nengine = 'c'\n[broker]\nnmae = 1\n"
    config, problems = check_config(TomlSource(text, "linn.toml"), kinds)
    assert config is None
    assert [(problem.line, problem.key) for problem in problems.in_order()] == [
        (2, "topics.a.kind"),
        (3, "topics.a.laese"),
        (4, "topics.a.retention"),
        (6, "storage.b.engine"),
        (8, "broker.nmae"),
    ]


def test_references_to_a_wrong_table_are_not_reported_as_well(kinds: PluginManager) -> None:
    fast = "[storage.fast]\nengine = 'tape'\ncolour = 0\n"
    text = f"{fast}[topics.a]\nstorage = 'fast'\ndead_letter = 'b'\n[topics.b]\nkind = 1\n"
    _, problems = check_config(TomlSource(text, "linn.toml"), kinds)
    assert [problem.line for problem in problems.in_order() if problem.severity == "error"] == [3, 8]


WARNED = [
    ("[topics.a]\nretention = '1d'", "topics.a.retention", 'has no effect while kind is "queue"'),
    ("[topics.a]\nretention_bytes = '1GiB'", "topics.a.retention_bytes", 'has no effect while kind is "queue"'),
    ("[topics.a]\nkind = 'both'\nkeep = '1d'", "topics.a.keep", 'has no effect while kind is "both"'),
    ("[topics.a]\nkind = 'stream'\nttl = '1d'", "topics.a.ttl", 'has no effect while kind is "stream"'),
    ("[topics.a]\noverflow = 'reject'", "topics.a.overflow", "has no effect without bytes_max or records_max"),
    ("[topics.a]\norder_window = 9", "topics.a.order_window", 'has no effect while order is "fifo"'),
    ("[topics.a]\nlevels = 5", "topics.a.levels", 'has no effect while order is "fifo"'),
    ("[topics.a]\norder_by = 'label.a'", "topics.a.order_by", 'has no effect while order is "fifo"'),
    ("[topics.a]\nmax_deliveries = 5", "topics.a.max_deliveries", "is dropped after 5 attempts"),
    (
        "[topics.a]\ndead_letter = 'b'\nmax_deliveries = 'unlimited'\n[topics.b]",
        "topics.a.dead_letter",
        "takes only rejected records",
    ),
    (
        "[exchanges.x]\ntype = 'desk'\n[topics.a]\ndead_letter_exchange = 'x'\nmax_deliveries = 'unlimited'",
        "topics.a.dead_letter_exchange",
        "takes only rejected records",
    ),
    ("[plugins]\nblock = ['smaple']", "plugins.block[0]", 'did you mean "sample"?'),
]


@pytest.mark.parametrize(("text", "key", "words"), WARNED)
def test_misleading_settings_are_a_warning(kinds: PluginManager, text: str, key: str, words: str) -> None:
    config, problems = check_config(TomlSource(text, "linn.toml"), kinds)
    assert config is not None
    (problem,) = problems.found
    assert (problem.severity, problem.key) == ("warning", key)
    assert words in problem.text


def test_dead_letters_that_go_round_are_a_warning(kinds: PluginManager) -> None:
    text = "[topics.a]\nmax_deliveries = 2\ndead_letter = 'b'\n[topics.b]\nmax_deliveries = 2\ndead_letter = 'a'\n"
    _, problems = check_config(TomlSource(text, "linn.toml"), kinds)
    assert [(problem.line, problem.text) for problem in problems.in_order()] == [
        (3, "dead letters go round in a circle: a -> b -> a"),
        (6, "dead letters go round in a circle: b -> a -> b"),
    ]


THROUGH = """
[exchanges.graves]
type = "direct"
[exchanges.more]
type = "fanout"
[[exchanges.more.bindings]]
exchange = "graves"
key = "again"
[topics.a]
max_deliveries = 2
dead_letter_exchange = "graves"
dead_letter_key = "again"
[topics.b]
max_deliveries = 2
dead_letter = "a"
[[topics.b.bindings]]
exchange = "more"
[topics.c]
max_deliveries = 2
dead_letter = "a"
[[topics.c.bindings]]
exchange = "graves"
key = "other"
"""


def circles_of(kinds: PluginManager, text: str) -> list[str]:
    _, problems = check_config(TomlSource(text, "linn.toml"), kinds)
    found = [problem for problem in problems.in_order() if "circle" in problem.text]
    return [f"{problem.key}: {problem.text.partition(': ')[2]}" for problem in found]


def test_dead_letters_that_go_round_through_exchanges_are_a_warning(kinds: PluginManager) -> None:
    assert circles_of(kinds, THROUGH) == [
        "topics.a.dead_letter_exchange: a -> exchange graves -> exchange more -> b -> a",
        "topics.b.dead_letter: b -> a -> exchange graves -> exchange more -> b",
    ], "c is bound by another key"
    assert circles_of(kinds, THROUGH.replace('key = "again"\n[topics.a]', 'key = "elsewhere"\n[topics.a]')) == []
    without_key = THROUGH.replace('dead_letter_key = "again"', "")
    assert "topics.c.dead_letter: c -> a -> exchange graves -> c" in circles_of(kinds, without_key), "by its own key"
    lone = (
        '[exchanges.x]\ntype = "fanout"\n[topics.a]\ndead_letter_exchange = "x"\n'
        '[[topics.a.bindings]]\nexchange = "x"\n'
    )
    assert circles_of(kinds, lone) == ["topics.a.dead_letter_exchange: a -> exchange x -> a"]
    with_rest = '[exchanges.y]\ntype = "direct"\nalternate = "x"\n' + lone.replace(
        'letter_exchange = "x"', 'letter_exchange = "y"'
    )
    assert circles_of(kinds, with_rest) == ["topics.a.dead_letter_exchange: a -> exchange y -> exchange x -> a"]


words = st.sampled_from(
    ["[topics.a]", "[broker]", "[[topics.a.bindings]]", "kind", "retention", "name", "=", "'queue'", "'1d'", "14", "\n"]
)
pieces = (
    words | st.text(max_size=4) | st.sampled_from(['"a\\nb"', "exchange", "[storage.tape]", "nan", "{", "}", "[1]"])
)


@given(st.lists(pieces, max_size=12).map(" ".join))
def test_any_text_is_a_configuration_or_errors_of_one_line(kinds: PluginManager, text: str) -> None:
    try:
        source = TomlSource(text, "linn.toml")
    except ConfigUnreadable as error:
        shown = [str(error)]
    else:
        config, problems = check_config(source, kinds)
        assert (config is None) == (problems.error_count > 0)
        assert all(1 <= problem.line <= text.count("\n") + 1 for problem in problems.found)
        shown = [problems.describe(problem) for problem in problems.found]
    assert all(line.isprintable() for line in shown)


# --- reading the file ------------------------------------------------------------------------------------------------


def test_a_file_is_read_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "linn.toml"
    file.write_bytes(b"\xef\xbb\xbf[plugins]\nblock = ['dram']\n")
    assert plugin_settings(read_toml(str(file))).block == ("dram",)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"a = 1\nb = '\xff'\n", ":2: not UTF-8: byte 0xff"),
        (b"a = 1\nb\n", ":2:2: not TOML: "),
        (b"#" * (5 << 20), ": larger than 4 MiB"),
    ],
)
def test_a_file_that_is_no_toml_is_unreadable(tmp_path: Path, content: bytes, text: str) -> None:
    file = tmp_path / "linn.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigUnreadable) as raised:
        read_toml(str(file))
    assert raised.value.text.startswith(f"{file}{text}")


@pytest.mark.parametrize(("name", "reason"), [("none.toml", "No such file"), (".", "Is a directory"), ("\0", "null")])
def test_a_file_that_is_not_there_is_unreadable(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(ConfigUnreadable, match=f"can't be read: .*{reason}"):
        read_toml(f"{tmp_path}/{name}")


def test_a_wrong_plugins_table_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigUnknownKey, match=r'linn.toml:2: plugins.blok: unknown key; did you mean "block"'):
        plugin_settings(TomlSource("[plugins]\nblok = []\n", "linn.toml"))


def test_loading_raises_the_first_error_of_the_file(kinds: PluginManager) -> None:
    with pytest.raises(ConfigUnknownKey, match=r"linn.toml:2: topics.a.x"):
        load_config(TomlSource("[topics.a]\nx = 1\n[broker]\ny = 1\n", "linn.toml"), kinds)
