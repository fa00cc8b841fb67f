"""The grammar that all nouns share: without a verb they list, and `show` is `describe`."""

import json
import re
from typing import Any

import pytest
from lost_consumer import decide_and_leave
from reference_pages.commands import commands

from linn.cli.noun import Noun
from linn.sync import connect
from linn.testing.process import BrokerProcess

GROUPS = {path: command for path, command in commands() if hasattr(command, "commands") and path != "linn"}
NOUNS = [path.removeprefix("linn ") for path, command in GROUPS.items() if isinstance(command, Noun)]
DESCRIBED = [name for name in NOUNS if "describe" in GROUPS[f"linn {name}"].commands]


@pytest.fixture(scope="module")
def furnished(linn: Any, broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One of each noun; the id of the decided delivery."""
    linn("topics", "create", "river", "kind=stream")
    linn("topics", "create", "drain")
    linn("topics", "create", "pond", "dead_letter=drain", "max_deliveries=5")
    linn("exchanges", "create", "front")
    linn("bindings", "create", "front", "river")
    linn("publish", "river", "drop")
    linn("publish", "river", "snow", "--delay", "1d")
    linn("roles", "create", "fishers", "topic:river=consume")
    linn("users", "create", "peter", "--role", "fishers")
    linn("consume", "river", "--group", "readers", "--count", "1")
    linn("subscriptions", "create", "river", "anglers")
    linn("topics", "create", "ledgers", "delivery=exactly-once")
    linn("publish", "ledgers", "coin")
    with connect(broker.url) as client, client.transaction("tide"):
        pass
    return str(decide_and_leave(broker.url, "ledgers", "ledger-1", tmp_path_factory.mktemp("store")))


def test_everything_listable_is_a_noun() -> None:
    assert {path for path, command in GROUPS.items() if "list" in command.commands} == {
        f"linn {name}" for name in NOUNS
    }
    assert {"topics", "exchanges", "bindings", "groups", "plugins"} <= set(NOUNS)
    assert set(NOUNS) - set(DESCRIBED) == {"connections"}, "a list says all of one"


@pytest.mark.parametrize("name", NOUNS)
@pytest.mark.usefixtures("furnished")
def test_a_noun_without_a_verb_lists(quick: Any, name: str) -> None:
    listed, bare = quick(name, "list"), quick(name)
    as_json, list_as_json = quick(name, "--json"), quick(name, "list", "--json")
    assert {done.returncode for done in (listed, bare, as_json, list_as_json)} == {0}
    assert json.loads(as_json.stdout)
    if name != "connections":  # Each command is another one.
        assert ageless(bare.stdout) == ageless(listed.stdout)
        assert ageless(as_json.stdout) == ageless(list_as_json.stdout)


@pytest.mark.parametrize("name", DESCRIBED)
def test_show_is_describe(quick: Any, furnished: str, name: str) -> None:
    arguments = {
        "queues": ["pond"],
        "exchanges": ["front"],
        "bindings": ["front"],
        "groups": ["readers"],
        "subscriptions": ["river", "anglers"],
        "dead-letters": ["river", "0/0"],
        "scheduled": ["river", "0/0"],
        "deliveries": ["ledgers", "0", furnished],
        "transactions": ["tide"],
        "plugins": ["dram"],
        "users": ["peter"],
        "roles": ["fishers"],
    }
    described = quick(name, "describe", *arguments.get(name, ["river"]), "--json")
    shown = quick(name, "show", *arguments.get(name, ["river"]), "--json")
    assert (shown.returncode, ageless(shown.stdout)) == (0, ageless(described.stdout))


def ageless(text: str) -> str:
    """A text without the age of what is ready, which grows from one command to the next."""
    return re.sub(r" +\d+\.\d+", " AGE", text)


@pytest.mark.parametrize("name", DESCRIBED)
def test_options_behind_the_verb_only_and_a_wrong_verb_end_with_2(within: Any, name: str) -> None:
    before = within(name, "--json", "describe", "x")
    assert before.returncode == 2
    assert f"linn {name} describe ..." in before.stderr
    assert within(name, "lst").returncode == 2
    assert "No such command 'lst'" in within(name, "lst").stderr
    help_words = within(name, "--help").stdout.replace("│", " ").split()
    assert "Without a command: list." in " ".join(help_words)
