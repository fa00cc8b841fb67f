"""A broker and the file of what was made live: damaged, lost, of the former format, or never finished."""

from __future__ import annotations

import json
from typing import Any

import pytest
from raw_client import ALWAYS, RawClient, broker_on, connected, no_tasks, simulated

from linn.core.errors.tree import DescriptorsExhausted, StorageError
from linn.core.metadata.embedded import EmbeddedMetadata
from linn.testing.deterministic import run_simulation
from linn.testing.sim_disk import SimDisk
from linn.testing.sim_env import SimEnv

FILE = "data/metadata.json"
NOTHING = b'{"format": 4, "revision": 0, "entries": {}}\n'
"""The file that docs/reference/storage-format.md tells an operator to write."""
TOML = ALWAYS + '[exchanges.e]\ntype = "topic"\n[topics.s]\nkind = "stream"\n[topics.q]\n[topics.b]\nkind = "both"\n'


async def make_things(client: RawClient) -> None:
    await client.administer("topic.create", name="live", settings={"kind": "stream", "partitions": 2})
    await client.administer("topic.create", name="jobs")
    await client.administer("exchange.create", name="x", settings={"type": "direct"})
    await client.administer("exchange.bind", exchange="x", topic="live", key="k")
    await client.administer("exchange.bind", exchange="x", target_exchange="e", key="r")
    for topic in ("live", "jobs", "s"):
        await client.publish(topic, ["a", "b"], partition=0)


async def things(client: RawClient) -> dict[str, Any]:
    """All topics and exchanges. A start may bind in another order."""
    exchanges = await client.administer("exchange.list")
    for exchange in exchanges:
        exchange["bindings"].sort(key=str)
    return {"topics": await client.administer("topic.list"), "exchanges": exchanges}


async def once_alive(env: SimEnv, toml: str = TOML) -> dict[str, Any]:
    """The topics and exchanges after a life in which some were made."""
    async with broker_on(env, toml):
        client = await connected(env)
        await make_things(client)
        return await things(client)


async def content_of(disk: SimDisk, path: str = FILE) -> bytes:
    file = disk.open(path)
    try:
        return bytes(await file.read(0, file.size()))
    finally:
        file.close()


def put(disk: SimDisk, content: bytes) -> None:
    disk.unlink(FILE)
    file = disk.open(FILE, create=True)
    file.write([content])
    file.close()


async def everything(disk: SimDisk, folder: str = "data") -> dict[str, bytes]:
    """The bytes of every file."""
    found: dict[str, bytes] = {}
    for name in disk.list_dir(folder):
        path = f"{folder}/{name}"
        try:
            found[path] = await content_of(disk, path)
        except StorageError:  # It is a folder.
            found |= await everything(disk, path)
    return found


async def refused(env: SimEnv, toml: str = TOML) -> str:
    """Why a start is refused; nothing in the data folder may change by it."""
    before = await everything(env.disk)
    with pytest.raises(StorageError, match="Nothing was changed") as refusal:
        async with broker_on(env, toml):
            pass
    assert await everything(env.disk) == before
    return refusal.value.text


# --- damage ----------------------------------------------------------------------------------------------------------


@simulated
async def test_no_topic_goes_and_no_record_is_dropped_for_a_damaged_byte(env: SimEnv) -> None:
    before = await once_alive(env)
    whole = await content_of(env.disk)
    for old, new in (
        (b'"14d"', b'"14s"'),
        (b"topics/jobs", b"topics/jobc"),
        (b"topics/", b"uopics/"),
        (b"exchanges/x", b"exchanges/y"),
        (b"live_bindings", b"live_bindingr"),
        (b'"settings"', b'"settingr"'),
        (b'"partitions":2', b'"partitions":3'),
        (b'"crc32c"', b'"crc32d"'),
    ):
        assert old in whole
        put(env.disk, whole.replace(old, new, 1))
        assert "metadata.json can't be read" in await refused(env)
    put(env.disk, whole)
    async with broker_on(env, TOML):
        assert await things(await connected(env)) == before


ID = "6f1c2d6e-3f0a-4f5e-9d1b-0a8f7c6b5a49"
TOPIC = {"id": ID, "settings": {"kind": "stream"}, "live_bindings": [], "live_keys": []}


@pytest.mark.parametrize(
    ("key", "entry"),
    [
        ("uopics/t", TOPIC),
        ("topics", TOPIC),
        ("topics/", TOPIC),
        ("topics/../t", TOPIC),
        ("topics/__s.t", TOPIC),
        ("topics/t", None),
        ("topics/t", []),
        ("topics/t", {}),
        ("topics/t", {"settings": {}}),
        ("topics/t", {**TOPIC, "live_bindingr": []}),
        ("topics/t", {**TOPIC, "deleted": False}),
        ("topics/t", {**TOPIC, "deleted": 1}),
        ("topics/t", {**TOPIC, "settings": None}),
        ("topics/t", {**TOPIC, "settings": {"kind": "queud"}}),
        ("topics/t", {**TOPIC, "settings": {"kinf": "queue"}}),
        ("topics/t", {**TOPIC, "settings": {"partitions": "2"}}),
        ("topics/t", {**TOPIC, "settings": {"bindings": [{}]}}),
        ("topics/t", {key: value for key, value in TOPIC.items() if key != "id"}),
        ("topics/t", {**TOPIC, "id": 7}),
        ("topics/t", {**TOPIC, "id": ID.upper()}),
        ("topics/t", {**TOPIC, "live_bindings": {}}),
        ("topics/t", {**TOPIC, "live_keys": {}}),
        ("topics/t", {**TOPIC, "live_keys": ["reten/toin"]}),
        ("topics/t", {**TOPIC, "live_bindings": [{"exchange": 1}]}),
        ("topics/t", {**TOPIC, "live_bindings": [{"exchange": "e", "kez": ""}]}),
        ("exchanges/x/y", {"live_bindings": []}),
        ("exchanges/x", {}),
        ("exchanges/x", {"live_bindings": [], "deleted": True}),
        ("exchanges/x", {"live_bindings": [None]}),
        ("exchanges/x", {"live_bindings": [], "settings": None}),
        ("exchanges/x", {"live_bindings": [], "settings": {"type": 1}}),
        ("exchanges/x", {"live_bindings": [], "settings": {"type": "direct", "bindings": {}}}),
    ],
)
@simulated
async def test_an_entry_of_another_shape_is_refused_by_its_key(env: SimEnv, key: str, entry: object) -> None:
    store = EmbeddedMetadata(env.disk, "data", env.clock, no_tasks)
    env.disk.make_dir("data")
    await store.load()
    # One that is being deleted comes first: it must not go before all is known to be right.
    await store.put_all({"topics/gone": {**TOPIC, "deleted": True}, key: entry}, {})
    env.disk.open("data/lock", create=True).close()
    assert f"the entry '{key}' of the metadata is damaged" in await refused(env)


@simulated
async def test_a_topic_that_takes_a_deleted_ones_name_has_none_of_its_subscriptions(env: SimEnv) -> None:
    store = EmbeddedMetadata(env.disk, "data", env.clock, no_tasks)
    env.disk.make_dir("data")
    await store.load()
    await store.put_all({"topics/s": {**TOPIC, "deleted": True, "subscriptions": {"workers": {"number": 1}}}}, {})
    async with broker_on(env, TOML):
        client = await connected(env)
        assert await client.administer("subscription.list", topic="s") == []
        assert await client.administer("subscription.create", topic="s", subscription="workers") == {"created": True}


# --- loss ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("toml", [TOML, ""])
@simulated
async def test_a_lost_file_is_missed(env: SimEnv, toml: str) -> None:
    async with broker_on(env, toml + "[topics.t]\n"):
        pass
    env.disk.unlink(FILE)
    assert "is lost: it was there before data/metadata.reserve was made" in await refused(env, toml + "[topics.t]\n")


@simulated
async def test_the_folder_of_a_topic_that_was_made_live_misses_it_too(env: SimEnv) -> None:
    await once_alive(env)
    env.disk.unlink(FILE)
    env.disk.unlink("data/metadata.reserve")
    assert "it was there before data/segmented-log/jobs was made" in await refused(env)


@simulated
async def test_an_operator_who_declares_the_metadata_empty_gets_the_records_of_recreated_topics(env: SimEnv) -> None:
    await once_alive(env)
    env.disk.unlink(FILE)
    await refused(env)
    put(env.disk, NOTHING)
    async with broker_on(env, TOML):
        client = await connected(env)
        assert [topic["name"] for topic in await client.administer("topic.list")] == ["b", "q", "s"]
        assert await client.fetch("s") == ["a", "b"]
        await client.administer("topic.create", name="live", settings={"kind": "stream", "partitions": 2})
        assert await client.fetch("live") == ["a", "b"]
    async with broker_on(env, TOML):
        assert await (await connected(env)).fetch("live") == ["a", "b"]


# --- files written by hand, earlier versions, and the first start ----------------------------------------------------


@simulated
async def test_a_file_that_an_operator_repaired_is_taken_over_without_a_sum(env: SimEnv) -> None:
    before = await once_alive(env)
    kept = json.loads(await content_of(env.disk))
    del kept["crc32c"]
    put(env.disk, json.dumps(kept).encode())
    async with broker_on(env, TOML):
        client = await connected(env)
        assert await things(client) == before
        await client.administer("topic.alter", name="live", settings={"retention": "3d"})
    assert (await content_of(env.disk)).startswith(b'{"format": 4, "crc32c": ')
    async with broker_on(env, TOML):
        shown = await (await connected(env)).administer("topic.show", name="live")
        assert shown["settings"]["retention"] == "3d"


@pytest.mark.parametrize("older", [1, 2, 3])
@simulated
async def test_a_folder_of_an_earlier_version_is_refused_in_one_line_that_says_so(env: SimEnv, older: int) -> None:
    await once_alive(env)
    put(env.disk, (await content_of(env.disk)).replace(b'"format": 4', b'"format": %d' % older))
    text = await refused(env)
    assert f"an earlier version of linn wrote this data folder, in format {older}" in text
    assert "\n" not in text


@simulated
async def test_a_first_start_of_the_former_version_that_ended_before_its_file_is_begun_again(env: SimEnv) -> None:
    async with broker_on(env, TOML):
        pass
    for left in (FILE, "data/metadata.reserve"):  # The former version made both when all topics were open.
        env.disk.unlink(left)
    async with broker_on(env, TOML):
        assert len(await (await connected(env)).administer("topic.list")) == 3


FIRST = "[topics.q]\n"


async def first_start(env: SimEnv) -> None:
    async with broker_on(env, FIRST):
        pass


async def start_twice(env: SimEnv, crash_at: int | None) -> int:
    """A first start that loses power at this operation, and one that goes well; how many operations the first has."""
    env.disk.crash_at = crash_at
    died = await env.run_until_death(first_start)
    count = len(env.disk.operations)
    async with broker_on(env.restart() if died else env, FIRST) as broker:
        assert list(broker.topics) == ["q"]
    return count


def test_a_first_start_that_lost_power_anywhere_is_begun_again() -> None:
    for crash_at in range(run_simulation(0, lambda env: start_twice(env, None))):
        run_simulation(crash_at, lambda env, at=crash_at: start_twice(env, at))  # type: ignore[misc]


@simulated
async def test_folders_that_are_no_topics_are_no_proof_of_a_former_life(env: SimEnv) -> None:
    for folder in (
        "data/lost+found/0",
        "data/segmented-log/lost+found/0",
        "data/segmented-log/notes",
        "data/other/t/0",
    ):
        env.disk.make_dir(folder)
    await first_start(env)


# --- descriptors -----------------------------------------------------------------------------------------------------


def test_a_change_that_found_no_descriptor_is_made_and_the_next_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(env: SimEnv) -> None:
        missing: list[str] = []
        sync_dir = env.disk.sync_dir

        async def sync(path: str) -> None:
            if path == "data" and missing and env.disk.exists(FILE):
                missing.pop()
                raise DescriptorsExhausted(f"can't open the folder {path}: Too many open files")
            await sync_dir(path)

        async with broker_on(env, ""):
            client = await connected(env)
            await client.administer("topic.create", name="t", settings={"kind": "stream"})
            monkeypatch.setattr(env.disk, "sync_dir", sync)
            for hours in ("5h", "6h"):
                missing += ["once", "twice", "three times"]
                altered = await client.administer("topic.alter", name="t", settings={"retention": hours})
                assert altered == {"changed": ["retention"], "warnings": []}
                assert missing == []
            missing += ["once"]
            assert await client.administer("topic.create", name="u") == {"created": True}
            missing += ["once"]
            await client.administer("topic.delete", name="u")
            env.crash()

    async def lives(env: SimEnv) -> None:
        assert await env.run_until_death(scenario)
        monkeypatch.undo()
        env = env.restart()
        async with broker_on(env, ""):
            [shown] = await (await connected(env)).administer("topic.list")
            assert (shown["name"], shown["settings"]["retention"]) == ("t", "6h")

    run_simulation(0, lives)
