"""RealProcess: facts about this process from Linux, behind the port of `linn.core.env.env`.

Law: reading never fails: an unavailable fact is 0, or an empty text.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from pathlib import PurePosixPath

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_OWN_DESCRIPTOR = 1
"""The descriptor through which the folder of descriptors is read."""
_CGROUPS = "/sys/fs/cgroup"


class RealProcess:
    """This process."""

    def memory_bytes(self) -> int:
        try:
            with open("/proc/self/statm", "rb") as file:
                return int(file.read().split()[1]) * _PAGE_BYTES
        except OSError:
            return 0

    def memory_bytes_max(self) -> int:
        found = [os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES]
        for path in memory_limit_files(_own_cgroups()):
            # "max", a missing file and an unreadable one all mean: no limit.
            with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
                found.append(int(file.read()))
        return min(found)

    def descriptors(self) -> int:
        try:
            return len(os.listdir("/proc/self/fd")) - _OWN_DESCRIPTOR
        except OSError:
            return 0

    def descriptors_max(self) -> int:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def user_id(self) -> int | None:
        return os.geteuid()

    def boot_id(self) -> str:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def host(self) -> str:
        return socket.gethostname()

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def processor_s(self) -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime


def _own_cgroups() -> str:
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def memory_limit_files(cgroups: str) -> list[str]:
    """Files that may limit a process's memory, from its /proc/PID/cgroup: for its cgroup and all above it (v1, v2)."""
    found: list[str] = []
    for line in cgroups.splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        for folder in (PurePosixPath(path), *PurePosixPath(path).parents):
            if not controllers:
                found.append(str(PurePosixPath(_CGROUPS, *folder.parts[1:], "memory.max")))
            elif "memory" in controllers.split(","):
                found.append(str(PurePosixPath(_CGROUPS, "memory", *folder.parts[1:], "memory.limit_in_bytes")))
    return found
