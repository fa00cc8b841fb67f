"""The errors that linn raises: one tree under `LinnError`, one class and one stable code for each.

`error.code` is for programs and never changes its meaning; `error.retriable` says whether the same request may succeed
later as it is. The reference page `errors.md` says for each what to do.

Example:
    try:
        await producer.publish(b"two coffees")
    except linn.errors.TopicFull:
        await anyio.sleep(1)
"""

# ruff: noqa: F403  All errors of these modules are public.
from linn.core.errors.auth import *
from linn.core.errors.cluster import *
from linn.core.errors.inboxes import *
from linn.core.errors.lifetimes import *
from linn.core.errors.messages import *
from linn.core.errors.metadata import *
from linn.core.errors.peers import *
from linn.core.errors.replication import *
from linn.core.errors.tls import *
from linn.core.errors.tree import *
from linn.core.errors.tree import LinnError


def __dir__() -> list[str]:
    return sorted(name for name, it in globals().items() if isinstance(it, type) and issubclass(it, LinnError))
