"""RealProcess: what Linux says of this process, behind the port of `linn.core.env`.

Law: reading never fails: what the machine does not say is 0.
"""

from __future__ import annotations

import os
import resource

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_OWN_DESCRIPTOR = 1
"""The one with which the folder of descriptors is read."""


class RealProcess:
    """This process."""

    def memory_bytes(self) -> int:
        try:
            with open("/proc/self/statm", "rb") as file:
                return int(file.read().split()[1]) * _PAGE_BYTES
        except OSError:
            return 0

    def descriptors(self) -> int:
        try:
            return len(os.listdir("/proc/self/fd")) - _OWN_DESCRIPTOR
        except OSError:
            return 0

    def descriptors_max(self) -> int:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def processor_s(self) -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime
