"""The data folder that the workers of one machine share, and its change from and to the folder of one broker.

    FOLDER                  the data of worker 1, as of a broker alone
    FOLDER/__workers        the metadata of all, with the sockets between the processes
    FOLDER/__workers/N      the data of worker N

Laws: a folder with the data of one broker becomes that of workers, and back, in steps of which each may be the last one
before a crash: the next start goes on with it. The metadata moves in one write. A topic is given to worker 1
with the records that it has there. No topic is hidden: where another number of workers, or none, would have topics
without a leader, the start is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linn.core.admin.stored_entries import EXCHANGE, SECRET, TOPIC
from linn.core.broker.start_counter import StartCounter
from linn.core.cluster.catalog_store import PREFIXES
from linn.core.cluster.entries import (
    CLUSTER,
    NODES,
    PARTS,
    ClusterEntry,
    ClusterState,
    NodeEntry,
    PartEntry,
    check_level,
)
from linn.core.cluster.folder import Folder, FolderNote
from linn.core.cluster.node import ID_BYTES
from linn.core.cluster.placement import part_key
from linn.core.config.config import Config
from linn.core.env.env import Env, Spawn
from linn.core.errors.cluster import ClusterForeign
from linn.core.errors.names import AUDIT_TOPIC
from linn.core.errors.texts import counted
from linn.core.metadata.embedded import FILE, RESERVE, EmbeddedMetadata
from linn.core.metadata.levels import LEVEL
from linn.core.metadata.store import ABSENT, REMOVED, MetadataStore, Snapshot, Stored
from linn.verbs import TRANSACTIONS_TOPIC

WORKERS = "__workers"
"""The folder in a data folder; no storage can have this name."""
TOPICS_NAMED_MAX = 3


def shared_folder(data_dir: str) -> str:
    """The folder of what workers share."""
    return f"{data_dir}/{WORKERS}"


def worker_folder(data_dir: str, number: int) -> str:
    """The data folder of a worker."""
    return data_dir if number == 1 else f"{shared_folder(data_dir)}/{number}"


class WorkerFolders:
    """The folders of all workers. The caller holds the lock of the shared one."""

    def __init__(self, config: Config, env: Env, spawn: Spawn) -> None:
        self._config = config
        self._env = env
        self._spawn = spawn
        self._data_dir = config.broker.data_dir
        self._shared = shared_folder(self._data_dir)

    def store(self, folder: str) -> EmbeddedMetadata:
        """The metadata in a folder."""
        return EmbeddedMetadata(self._env.disk, folder, self._env.clock, self._spawn)

    async def share(self, store: MetadataStore) -> None:
        """Give the data of one broker, if the folder has any, to worker 1. `store`: of all workers.

        Raises LogCorrupt, StorageError, ClusterForeign: the folder belongs to another cluster.
        """
        if not self._env.disk.exists(f"{self._data_dir}/{FILE}"):
            return
        alone = self.store(self._data_dir)
        found = await alone.load()
        if not was_alone(found):
            return
        note = await self._noted_as_first()
        if CLUSTER not in (await store.load()).entries:
            epoch = await StartCounter(self._env.disk, self._data_dir).count(self._env.clock.now_ms())
            entries = self._shared_entries(found, note, epoch)
            await store.put_all(entries, dict.fromkeys(entries, ABSENT))
        await alone.put_all({key: REMOVED for key in found.entries if not key.startswith(TOPIC)}, {})

    async def _noted_as_first(self) -> FolderNote:
        """Note that the data folder is that of node 1; returns the note. Raises ClusterForeign, StorageError."""
        folder, rng = Folder(self._env.disk, self._data_dir), self._env.rng
        note = await folder.load()
        folder.check(1)
        if note is None:
            ids = rng.bytes(ID_BYTES).hex(), rng.bytes(ID_BYTES).hex()
            note = FolderNote(*ids, node=1, boot_id=self._env.process.boot_id(), lost="memory")
            await folder.save(note)
        return note

    def _shared_entries(self, found: Snapshot, note: FolderNote, epoch: int) -> dict[str, Any]:
        """The entries of a new cluster with one node, which holds all topics."""
        catalog = {key: value for key, (_, value) in found.entries.items() if _is_whole(key, value)}
        node = NodeEntry(note.folder_id, self._env.process.host(), rack="")
        entries = {CLUSTER: ClusterEntry(note.cluster_id, LEVEL), f"{NODES}1": node, **catalog}
        for key, value in catalog.items():
            if key.startswith(TOPIC):
                part = PartEntry(leader=0, session="", epoch=epoch, isr=(1,), replicas=(1,))
                entries[part_key(value["id"])] = part
        for name, exchange in self._config.exchanges.items():
            # A broker alone stores of these only what is not in its file.
            stored = catalog.get(EXCHANGE + name, {"live_bindings": []})
            entries[EXCHANGE + name] = {**stored, "settings": exchange.encoded()}
        return entries

    async def check_count(self, store: MetadataStore, count: int) -> None:
        """Refuse fewer workers than hold topics. Raises ClusterForeign, MetadataInvalid, MetadataLater."""
        held = _held_beyond(await store.load(), count)
        if held:
            raise ClusterForeign(_hidden(held, f"with {counted(count, 'worker')}"))

    async def end_sharing(self) -> None:
        """Make the folder that of one broker again, if workers have shared it and worker 1 keeps all topics.

        Raises ClusterForeign: another worker keeps some; LogCorrupt, StorageError.
        """
        disk = self._env.disk
        if not disk.exists(f"{self._shared}/{FILE}"):
            return
        found = await self.store(self._shared).load()
        if CLUSTER in found.entries:
            held = _held_beyond(found, 1)
            if held:
                raise ClusterForeign(_hidden(held, "without workers"))
            alone = self.store(self._data_dir)
            kept = (await alone.load()).entries
            await alone.put_all(_entries_alone(found, kept), {})
            numbers = [int(name) for name in disk.list_dir(self._shared) if name.isdigit()]
            for folder in [worker_folder(self._data_dir, number) for number in (*numbers, 1)]:
                disk.unlink(f"{folder}/node")
                await disk.sync_dir(folder)
        for name in (RESERVE, FILE):  # The file without its reserve is a store; the reserve alone would be a lost one.
            disk.unlink(f"{self._shared}/{name}")
            await disk.sync_dir(self._shared)


def was_alone(found: Snapshot) -> bool:
    """Tell whether the metadata in a broker's folder is that of a broker alone: in a cluster secrets are elsewhere."""
    return any(key.startswith(SECRET) for key in found.entries)


def _is_whole(key: str, value: Any) -> bool:
    """Whether an entry is for all workers. Each has an audit trail of its own, and a half made topic is gone."""
    if not key.startswith(TOPIC):
        return key.startswith(PREFIXES)
    return key != TOPIC + AUDIT_TOPIC and not value.get("deleted") and not value.get("unfinished")


def _entries_alone(found: Snapshot, kept: Mapping[str, Stored]) -> dict[str, Any]:
    """The entries of a broker alone, from the shared ones. `kept`: topics with logs at worker 1."""
    entries = {key: value for key, (_, value) in found.entries.items() if key.startswith(PREFIXES)}
    for key, (_, value) in kept.items():
        if key.startswith(TOPIC) and key not in entries and key != TOPIC + AUDIT_TOPIC:
            entries[key] = {**value, "deleted": True}  # Its deletion was not finished.
    entries.pop(own := TOPIC + TRANSACTIONS_TOPIC, None)  # A broker alone has the log in the same place, and no topic.
    return entries | ({own: REMOVED} if own in kept else {})


def _held_beyond(found: Snapshot, count: int) -> Mapping[str, int]:
    """The topics that only workers with greater numbers hold, and the first worker of each.

    Raises MetadataInvalid, MetadataLater.
    """
    check_level(found.entries, LEVEL)
    state = ClusterState.of(found.revision, found.entries)
    homes = {
        key.removeprefix(PARTS).partition("/")[0]: min(part.isr, default=part.replicas[0])
        for key, part in state.parts.items()
    }
    ids = {value["id"]: key.removeprefix(TOPIC) for key, (_, value) in found.entries.items() if key.startswith(TOPIC)}
    return {name: homes[id] for id, name in sorted(ids.items()) if homes.get(id, 0) > count}


def _hidden(held: Mapping[str, int], how: str) -> str:
    """Say which topics would not be served."""
    names = sorted(held)
    shown = ", ".join(names[:TOPICS_NAMED_MAX])
    more = f" and {len(names) - TOPICS_NAMED_MAX:,} more" if len(names) > TOPICS_NAMED_MAX else ""
    noun, them = ("topic", "it") if len(names) == 1 else ("topics", "them")
    text = f"{noun} {shown}{more} would not be served {how}, since other workers keep {them}"
    return f"{text}: serve with --workers {max(held.values())} or more, or delete {them} there"
