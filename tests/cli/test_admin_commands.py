"""Groups, queues, exchanges, bindings and plugins, looked at and changed from the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lost_consumer import decide_and_leave
from open_transaction import open_transaction

from linn.core.errors.tree import TransactionAborted
from linn.sync import connect
from linn.testing.process import BrokerProcess


def places(quick, topic: str, group: str) -> list[tuple[int | None, int]]:
    shown = json.loads(quick("groups", "describe", group, "--json").stdout)
    return [(place["offset"], place["lag"]) for place in shown["offsets"] if place["topic"] == topic]


@pytest.fixture
def readers(quick) -> str:
    """A stream of ten messages, of which the group `readers` has committed four."""
    name = "history"
    quick("topics", "delete", name, "--yes")
    quick("topics", "create", name, "kind=stream")
    quick("publish", name, *map(str, range(10)))
    assert quick("consume", name, "--group", "readers", "--count", "4").stdout == "0\n1\n2\n3\n"
    return name


def test_a_group_is_shown_moved_and_forgotten(quick, line_of, readers: str) -> None:
    (group,) = [group for group in json.loads(quick("groups", "list", "--json").stdout) if readers in group["topics"]]
    assert (group["group"], group["members"], group["lag"]) == ("readers", 0, 6)
    assert places(quick, readers, "readers") == [(4, 6)]
    quick("groups", "reset", "readers", "--to", "0", "--dry-run")
    assert places(quick, readers, "readers") == [(4, 6)]
    quick("groups", "reset", "readers", "--to", "1", "--yes")
    assert quick("consume", readers, "--group", "readers", "--count", "1").stdout == "1\n"
    quick("groups", "reset", "readers", "--to", "latest", "--yes")
    assert places(quick, readers, "readers") == [(10, 0)]
    quick("groups", "reset", "readers", "--to", "1h", "--partition", "0", "--yes")
    assert places(quick, readers, "readers") == [(0, 10)]
    assert quick("groups", "delete", "readers", "--yes").stdout == "deleted readers in all its streams\n"
    done = quick("groups", "describe", "readers")
    assert done.returncode == 1
    assert "[group.unknown]" in line_of(done.stderr)


def test_a_group_with_members_keeps_its_position(quick, line_of, broker: BrokerProcess, readers: str) -> None:
    command = [sys.executable, "-m", "linn", "consume", readers, "--group", "readers", "--url", broker.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reading:
        assert reading.stdout is not None
        assert reading.stdout.readline() == b"4\n"
        for verb in (("reset", "readers", "--to", "0"), ("delete", "readers")):
            done = quick("groups", *verb, "--yes")
            assert done.returncode == 1
            assert "[group.busy]" in line_of(done.stderr)
        (place,) = json.loads(quick("groups", "describe", "readers", "--json").stdout)["offsets"]
        assert place["member"] is not None
        reading.kill()


def test_a_queue_that_keeps_messages_is_done_again_by_a_new_subscription(quick, line_of, broker: BrokerProcess) -> None:
    assert quick("topics", "create", "bills", "--keep", "2d").returncode == 0
    assert quick("publish", "bills", "1", "2").returncode == 0
    assert quick("consume", "bills", "--count", "2").stdout == "1\n2\n"
    assert quick("subscriptions", "create", "bills", "again", "--start", "1h").stdout == "created again of bills\n"
    assert quick("consume", "bills", "--shared", "again", "--no-follow").stdout == "1\n2\n"
    assert quick("consume", "bills", "--shared", "late", "--since", "1", "--no-follow").stdout == "2\n"
    assert quick("consume", "bills", "--no-follow").stdout == ""
    done = quick("topics", "alter", "bills", "keep=off")
    assert done.returncode == 3, done.stderr
    assert "[config.not_live]" in line_of(done.stderr)


def test_a_named_subscription_is_made_consumed_shown_and_deleted(quick, line_of, readers: str) -> None:
    assert quick("subscriptions", "create", readers, "work", "--start", "2").stdout == f"created work of {readers}\n"
    assert quick("subscriptions", "create", readers, "work").stdout == f"work of {readers} exists already\n"
    assert quick("consume", readers, "--shared", "work", "--count", "3").stdout == "2\n3\n4\n"
    assert quick("consume", readers, "--shared", "work", "--count", "1", "--exec", "cat >/dev/null").returncode == 0
    assert quick("consume", readers, "--shared", "new", "--since", "latest", "--no-follow").stdout == ""
    assert "--where" in quick("consume", readers, "--shared", "work", "--where", "key = 'a'").stderr
    listed = json.loads(quick("subscriptions", "list", readers, "--json").stdout)
    assert [(one["subscription"], one["unsettled"]) for one in listed] == [("new", 0), ("work", 4)]
    assert readers not in quick("queues", "list").stdout
    assert f"work of {readers}" in quick("subscriptions", "describe", readers, "work").stdout
    assert quick("subscriptions", "delete", readers, "work", "--yes").stdout == f"deleted work of {readers}\n"
    done = quick("subscriptions", "describe", readers, "work")
    assert done.returncode == 1
    assert "[shared.unknown]" in line_of(done.stderr)


def test_a_wrong_group_topic_or_partition_is_one_line(quick, line_of, readers: str) -> None:
    quick("topics", "create", "pool")
    for command, code in (
        (("describe", "reader"), "group.unknown"),
        (("reset", "readers", "--to", "0", "--topic", "histery", "--yes"), "topic.unknown"),
        (("delete", "readers", "--topic", "pool", "--yes"), "delivery.wrong_kind"),
        (("reset", "readers", "--to", "0", "--partition", "7", "--yes"), "topic.partition_unknown"),
    ):
        done = quick("groups", *command)
        assert done.returncode == 1
        assert f"[{code}]" in line_of(done.stderr)


def test_a_queue_shows_ready_and_held_records(quick, broker: BrokerProcess) -> None:
    quick("topics", "create", "desk", "lease=1h")
    quick("publish", "desk", "a", "b", "c")
    command = [sys.executable, "-m", "linn", "consume", "desk", "--no-ack", "--url", broker.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holding:
        assert holding.stdout is not None
        assert [holding.stdout.readline() for _ in range(3)] == [b"a\n", b"b\n", b"c\n"]
        shown = json.loads(quick("queues", "describe", "desk", "--json").stdout)
        assert (shown["leased"], shown["ready"], shown["consumers"]) == (3, 0, 1)
        assert [consumer["leased"] for consumer in shown["by_consumer"]] == [3]
        assert quick("browse", "desk").stdout == "a\nb\nc\n", "browsing shows what is held as well"
        holding.kill()
    assert quick("consume", "desk", "--count", "1").stdout == "a\n"
    (desk,) = [queue for queue in json.loads(quick("queues", "list", "--json").stdout) if queue["topic"] == "desk"]
    assert (desk["ready"], desk["returned"], desk["leased"]) == (2, 2, 0)
    row = next(line for line in quick("queues", "list").stdout.splitlines() if "desk" in line)
    assert "2" in row


def test_decided_deliveries_are_listed_described_and_ended(quick, line_of, broker, tmp_path: Path) -> None:
    quick("topics", "create", "ledgers", "delivery=exactly-once")
    assert quick("deliveries", "list", "ledgers").stdout == "nothing is decided and not done in ledgers\n"
    with connect(broker.url) as client, client.producer("ledgers") as producer:
        producer.publish_many([b"one", b"three"], keys=[b"k", b"k"])
    delivery = str(decide_and_leave(broker.url, "ledgers", "ledger-1", tmp_path, records=2))
    row = next(line for line in quick("deliveries", "list", "ledgers").stdout.splitlines() if "ledger-1" in line)
    assert [cell.strip() for cell in row.split("│")[1:-2]] == [
        *("ledgers", "", "0", delivery, "0", "2", "1", "ledger-1", "no")
    ]
    assert json.loads(quick("deliveries", "list", "--consumer", "other", "--json").stdout) == {
        "deliveries": [],
        "more": 0,
    }
    described = json.loads(quick("deliveries", "show", "ledgers", "0", delivery, "--json").stdout)
    assert [(it["offset"], it["key"], it["size"]) for it in described["records"]] == [(0, "k", 3), (1, "k", 5)]
    shown = quick("deliveries", "show", "ledgers", "0", delivery, "--count", "1")
    assert f"delivery {delivery} of ledgers" in shown.stdout
    assert line_of(shown.stderr) == "linn: there are more than 1 record: --count shows more"
    ending = ("deliveries", "resolve", "ledgers", "0", delivery, "--consumer", "ledger-1")
    tried = quick(*ending, "--as", "return", "--dry-run")
    assert tried.stdout == "would end 2 records of ledger-1 as return\n"
    assert line_of(tried.stderr) == "linn: warning: if ledger-1 has stored the effect, it happens twice"
    assert quick(*ending, "--as", "done", "--end", "1", "--yes").stdout == "ended 1 record of ledger-1 as done\n"
    assert quick(*ending, "--as", "return", "--yes").stdout == "ended 1 record of ledger-1 as return\n"
    done = quick(*ending, "--as", "return", "--yes")
    assert done.returncode == 1
    assert "[delivery.not_current]" in line_of(done.stderr)
    assert quick("deliveries", "show", "ledgers", "0", delivery).returncode == 1
    assert quick(*ending, "--as", "forgotten", "--yes").returncode == 2
    assert quick("deliveries", "list", "--subscription", "s").returncode == 2


def test_the_question_says_what_may_happen(linn, broker, tmp_path: Path) -> None:
    linn("topics", "create", "books", "delivery=exactly-once")
    linn("publish", "books", "one")
    delivery = str(decide_and_leave(broker.url, "books", "ledger-1", tmp_path))
    ending = ("deliveries", "resolve", "books", "0", delivery, "--consumer", "ledger-1", "--as", "return")
    refused = linn(*ending, stdin="no\n")
    assert refused.returncode == 1
    warning, answer = refused.stderr.splitlines()
    assert warning == "linn: warning: if ledger-1 has stored the effect, it happens twice"
    assert answer == "linn: not ended: the answer was no"
    assert linn(*ending, stdin="yes\n").stdout == "ended 1 record of ledger-1 as return\n"


def cells(table: str, word: str) -> list[str]:
    """The cells of the one row that has a word."""
    (row,) = [line for line in table.splitlines() if word in line and line.startswith("│")]
    return [cell.strip() for cell in row.split("│")[1:-1]]


def test_transactions_are_listed_described_and_aborted(quick, line_of, broker: BrokerProcess) -> None:
    assert quick("transactions").stdout == "no client has used a transaction yet\n"
    with connect(broker.url) as client, client.transaction("earlier"):
        pass
    with open_transaction(broker.url, "billing", "accounts") as transaction:
        (shown,) = json.loads(quick("transactions", "list", "--state", "open", "--json").stdout)["transactions"]
        *row, taken = cells(quick("transactions").stdout, "billing")
        row[2] = "3.5"
        assert row == ["billing", "open", "3.5", "600", "1", "0", "1", "1"]
        assert taken.startswith("20")
        idle = quick("transactions", "list", "--state", "idle").stdout
        assert cells(idle, "earlier")[:5] == ["earlier", "idle", "", "60", "0"]
        assert "billing" not in idle
        assert quick("transactions", "list", "--state", "ending").stdout == "no transaction is ending\n"
        first = quick("transactions", "list", "--count", "1")
        assert "billing" in first.stdout
        assert "earlier" not in first.stdout
        assert line_of(first.stderr) == "linn: and 1 more: --state shows fewer"
        described = quick("transactions", "show", "billing").stdout
        assert f"billing: transaction {shown['number']}\n" in described
        _, published = described.split("published\n")
        assert cells(published.split("acked")[0], "accounts") == ["accounts", "0", "1"]
        assert cells(published.split("acked")[1].split("offsets")[0], "accounts") == ["accounts", "", "0", "1"]
        assert cells(published, "readers") == ["readers", "accounts", "0", "1"]
        tried = quick("transactions", "abort", "billing", "--dry-run")
        assert tried.stdout.startswith(f"would abort transaction {shown['number']} of billing, which was open for ")
        warning = f"linn: warning: a client that is still at work in transaction {shown['number']} gets "
        assert line_of(tried.stderr).startswith(warning)
        transaction.publish("accounts", b"three")
        done = quick("transactions", "abort", "billing", "--yes")
        assert done.stdout.startswith(f"aborted transaction {shown['number']} of billing, which was open for ")
        assert done.stdout.endswith(" s: 1 partition, 1 offset, 1 partition of queues\n")
        with pytest.raises(TransactionAborted, match="an operator aborted it"):
            transaction.publish("accounts", b"four")
    assert "billing: no transaction is open\n" in quick("transactions", "describe", "billing").stdout
    assert quick("consume", "accounts", "--count", "1").stdout == "one\n", "what it has acked is delivered again"


def test_a_transaction_that_can_not_be_aborted_is_one_line(quick, line_of, broker: BrokerProcess) -> None:
    with connect(broker.url) as client, client.transaction("payroll"):
        pass
    for verb, name, said in (
        ("describe", "pay-rol", 'no transactions have the name "pay-rol"'),
        ("abort", "pay-rol", 'no transactions have the name "pay-rol"'),
        ("abort", "payroll", '"payroll" has no open transaction: it is idle'),
    ):
        done = quick("transactions", verb, name)
        assert done.returncode == 1
        assert line_of(done.stderr) == f"linn: {said} [transaction.unknown]"
    for wrong in (("--state", "closed"), ("--count", "0"), ("--count", "1001")):
        assert quick("transactions", "list", *wrong).returncode == 2


def test_only_the_transaction_that_was_asked_about_is_aborted(linn, broker: BrokerProcess) -> None:
    command = [sys.executable, "-m", "linn", "transactions", "abort", "wages", "--url", broker.url]
    with open_transaction(broker.url, "wages", "wages") as transaction:
        refused = linn("transactions", "abort", "wages", stdin="no\n")
        assert refused.returncode == 1
        warning, answer = refused.stderr.splitlines()
        assert warning.endswith("gets transaction.aborted, and has to redo it")
        assert answer == "linn: not aborted: the answer was no"
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:
            assert asking.stderr is not None
            assert "warning" in asking.stderr.readline()
            transaction.abort()
            with connect(broker.url) as client, client.transaction("wages") as later:
                later.publish("wages", b"next")
                _, said = asking.communicate("yes\n", timeout=300)
                assert asking.returncode == 1
                assert said.endswith("[transaction.unknown]\n")
                done = linn("transactions", "abort", "wages", stdin="yes\n")
                assert done.stdout.startswith("aborted transaction ")
                later.abort()


def test_purge_empties_a_queue_and_no_stream(quick, line_of) -> None:
    quick("topics", "create", "heap")
    quick("publish", "heap", "a", "b")
    assert quick("purge", "heap", "--yes").stdout == "purged 2 messages of heap\n"
    assert quick("browse", "heap").stdout == ""
    quick("topics", "create", "river", "kind=stream")
    done = quick("purge", "river", "--yes")
    assert done.returncode == 1
    assert "[delivery.wrong_kind]" in line_of(done.stderr)


def test_an_existing_topic_with_other_settings_is_recognised(quick, line_of) -> None:
    quick("topics", "create", "kept", "lease=30s", "partitions=2")
    told = line_of(quick("topics", "create", "kept", "kind=stream", "lease=1m", "retention=forever").stderr)
    assert told == (
        'linn: topic kept exists with other settings: kind is "queue", not "stream"; partitions is 2, not 1; '
        'retention is "14d", not "forever"; lease is "30s", not "1m" [topic.exists]'
    )
    told = line_of(quick("topics", "alter", "kept", "partitioner=sticky").stderr)
    assert (
        told == "linn: topic kept: partitioner can't change while the topic exists: make a new topic [config.not_live]"
    )
    quick("exchanges", "create", "side")
    quick("exchanges", "create", "split", "type=consistent-hash", "alternate=side")
    told = line_of(quick("exchanges", "create", "split", "type=consistent-hash", "hash_on=key").stderr)
    assert told.startswith("linn: exchange split exists with other settings: ")
    assert "it has another alternate" in told
    assert 'hash_on is "routing_key", not "key"' in told
    told = line_of(quick("exchanges", "create", "split", "type=topic").stderr)
    assert 'type is "consistent-hash", not "topic"' in told


def test_exchanges_and_bindings_lead_a_message_and_are_taken_back(quick, line_of) -> None:
    quick("topics", "create", "inbox")
    assert quick("exchanges", "create", "front", "type=topic").stdout == "created front\n"
    assert quick("exchanges", "create", "front", "type=topic").stdout == "front exists with these settings\n"
    quick("exchanges", "create", "back", "type=fanout")
    assert quick("bindings", "create", "front", "back", "--to-exchange", "--key", "mail.#").stdout
    assert quick("bindings", "create", "back", "inbox").stdout == "bound inbox to back\n"
    again = quick("bindings", "create", "back", "inbox").stdout
    assert again == "nothing to do: inbox is bound like this to back\n"
    other = quick("bindings", "delete", "back", "inbox", "--key", "other").stdout
    assert other == "nothing to do: back has no such binding to inbox\n"
    assert ": 1 copy stored\n" in quick("publish", "--exchange", "front", "--routing-key", "mail.in", "letter").stdout
    assert quick("consume", "inbox", "--count", "1").stdout == "letter\n"
    done = quick("exchanges", "delete", "back", "--yes")
    assert done.returncode == 1
    assert "still has bindings" in line_of(done.stderr)
    assert quick("bindings", "delete", "back", "inbox").stdout == "unbound inbox from back\n"
    assert json.loads(quick("bindings", "list", "back", "--json").stdout) == []
    quick("bindings", "delete", "front", "back", "--to-exchange", "--key", "mail.#")
    assert quick("exchanges", "delete", "back", "--yes").stdout == "deleted back\n"
    assert "back" not in [exchange["name"] for exchange in json.loads(quick("exchanges", "list", "--json").stdout)]


def test_an_exchange_that_can_not_be_is_refused(quick, line_of) -> None:
    for command, returncode, code in (
        (("exchanges", "create", "odd", "type=topik"), 3, "plugin.unknown"),
        (("exchanges", "create", "odd", "tpye=topic"), 3, "config.unknown_key"),
        (("exchanges", "describe", "nowhere"), 1, "exchange.unknown"),
        (("bindings", "create", "nowhere", "nothing"), 1, "topic.unknown"),
    ):
        done = quick(*command)
        assert done.returncode == returncode
        assert f"[{code}]" in line_of(done.stderr)


def test_plugins_are_listed_described_and_told_apart_from_what_fails(within, tmp_path, line_of) -> None:
    listed = json.loads(within("plugins", "list", "--json").stdout)
    (dram,) = [plugin for plugin in listed["plugins"] if plugin["name"] == "dram"]
    assert (dram["state"], dram["brings"]) == ("loaded", [{"what": "storage engine", "name": "dram"}])
    shown = within("plugins", "describe", "dram").stdout
    assert "memory_bytes_max" in shown
    assert "256MiB" in shown
    assert "exchange type topic: no settings" in within("plugins", "describe", "exchanges").stdout
    assert within("plugins", "describe", "topic").stdout == within("plugins", "describe", "exchanges").stdout
    config = tmp_path / "linn.toml"
    config.write_text('[plugins]\nload = ["no_such_module"]\nblock = ["dram"]\n')
    done = within("plugins", "list", "--config", str(config), "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    states = {plugin["name"]: plugin["state"] for plugin in found["plugins"]}
    assert (states["no_such_module"], states["dram"], states["capnp"]) == ("failed", "blocked", "loaded")
    assert "No module named" in found["error"]
    done = within("plugins", "describe", "dramm")
    assert done.returncode == 3
    assert 'did you mean "dram"?' in line_of(done.stderr)
