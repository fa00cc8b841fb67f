"""SimDisk: a file system in memory, on a simulated device.

It finds paths, and refuses or carries out operations on them as POSIX does. `sim_device` keeps their content, and has
the faults that a test can plan.
"""

from __future__ import annotations

from collections.abc import Callable

from linn.core.errors.tree import DataDirLocked, DiskFull, StorageError, SyncFailed
from linn.testing.sim_device import SimDevice
from linn.testing.sim_file import SimFile
from linn.testing.sim_platter import Folder, Inode, Node


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    assert ".." not in parts, f"linn makes no path with '..': {path}"
    return parts


class SimDisk(SimDevice):
    """One process's file system, until the process dies."""

    def _be_born(self) -> None:
        super()._be_born()
        self._locked: list[Inode] = []

    def _find(self, path: str) -> Inode | Folder | None:
        self.check_alive()
        node: Inode | Folder | None = self.root
        for part in _parts(path):
            node = node.entries.get(part) if isinstance(node, Folder) else None
        return node

    def _folder(self, deed: str, path: str, *, at: str | None = None) -> Folder:
        """Return the folder `at`, or the one at `path`, which the error names."""
        node = self._find(path if at is None else at)
        if not isinstance(node, Folder):
            reason = "No such file or directory" if node is None else "Not a directory"
            raise StorageError(f"can't {deed} {path}: {reason}")
        return node

    def _place(self, deed: str, path: str) -> tuple[Folder, str]:
        """Return the parent folder of a path, and the name in it."""
        parts = _parts(path)
        assert parts, "the root has no name"
        return self._folder(deed, path, at="/".join(parts[:-1])), parts[-1]

    # --- the port ---

    def open(self, path: str, *, create: bool = False) -> SimFile:
        folder, name = self._place("open", path)
        node = folder.entries.get(name)
        if isinstance(node, Folder):
            raise StorageError(f"can't open {path}: Is a directory")
        self.check_writable("open", path)
        if node is None:
            if not create:
                raise StorageError(f"can't open {path}: No such file or directory")
            node = self._create("create", folder, name, path, Inode())
        return SimFile(self, node, path)

    def _create(self, operation: str, folder: Folder, name: str, path: str, node: Node) -> Node:
        if not self.room_bytes():
            raise DiskFull(f"can't {operation} {path}: No space left on device")
        dying = self.begin(operation, path)
        self.change_folder(folder, (name, node))
        self.end(dying)
        return node

    def read_named(self, path: str, bytes_max: int, *, private: bool = False) -> bytes:
        """Read as the port says; simulated files have no modes."""
        self.check_alive()
        node = self._find(path)
        if not isinstance(node, Inode):
            text = "No such file or directory" if node is None else "it is not a file"
            raise StorageError(f"can't read {path}: {text}")
        if len(node.data) > bytes_max:
            raise StorageError(f"can't read {path}: it has {len(node.data)} bytes, more than {bytes_max}")
        return bytes(node.data)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def list_dir(self, path: str) -> list[str]:
        return sorted(self._folder("list", path).entries)

    def make_dir(self, path: str) -> None:
        self.check_alive()
        folder, so_far = self.root, ""
        for part in _parts(path):
            so_far += f"/{part}"
            node = folder.entries.get(part)
            if node is None:
                self.check_writable("make the folder", so_far)
                node = self._create("make_dir", folder, part, so_far, Folder())
            if not isinstance(node, Folder):
                raise StorageError(f"can't make the folder {path}: File exists")
            folder = node

    def rename(self, source: str, target: str) -> None:
        folder, name = self._place(f"rename {source} to", target)
        source_folder, source_name = self._place("rename", source)
        assert folder is source_folder, f"renames stay in one folder: {source} to {target}"
        node = folder.entries.get(source_name)
        if node is None or isinstance(folder.entries.get(name), Folder):
            raise StorageError(f"can't rename {source} to {target}: {'Is a directory' if node else 'No such file'}")
        self.check_writable(f"rename {source} to", target)
        dying = self.begin("rename", target)
        if name != source_name:
            self.change_folder(folder, (source_name, None), (name, node))
        self.end(dying)

    def unlink(self, path: str) -> None:
        node = self._find(path)
        if isinstance(node, Folder):
            raise StorageError(f"can't delete {path}: Is a directory")
        if node is not None:
            self._remove("unlink", path)

    def remove_dir(self, path: str) -> None:
        node = self._find(path)
        if isinstance(node, Inode) or (node is not None and node.entries):
            reason = "Not a directory" if isinstance(node, Inode) else "Directory not empty"
            raise StorageError(f"can't delete the folder {path}: {reason}")
        if node is not None:
            self._remove("remove_dir", path)

    def _remove(self, operation: str, path: str) -> None:
        self.check_writable("delete", path)
        folder, name = self._place("delete", path)
        dying = self.begin(operation, path)
        self.change_folder(folder, (name, None))
        self.end(dying)

    async def sync_dir(self, path: str) -> None:
        try:
            folder = self._folder("sync the folder", path)
        except StorageError as error:
            raise SyncFailed(error.text) from error
        await self.sync_node("sync_dir", path, folder)

    def free_bytes(self, path: str) -> int:
        if self._find(path) is None:
            raise StorageError(f"can't measure the disk of {path}: No such file or directory")
        return self.room_bytes()

    def lock(self, path: str) -> Callable[[], None]:
        inode = self.open(path, create=True)._inode
        if inode in self._locked:
            raise DataDirLocked(f"another process holds {path}")
        self._locked.append(inode)

        def release() -> None:
            if inode in self._locked:
                self._locked.remove(inode)

        return release
