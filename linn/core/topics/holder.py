"""The holder of a transient topic in a cluster: the one node that has it, without replicas and without an election.

Law: the topic's entry in the metadata store is under the lease of the holder's session, and only the holder writes it.
So the topic ends with the session, at the latest, and no other node can keep the entry alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

HOLDER = "holder"
"""The key of the holder in the entry of a topic. A topic without it is placed on nodes by the controller."""


class Holder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node that holds a topic alone."""

    node: Annotated[int, msgspec.Meta(ge=1)]
    epoch: Annotated[int, msgspec.Meta(ge=0)]
    """The number of the node's start: the epoch in which it leads the topic."""


def holder_of(entry: Mapping[str, Any]) -> Holder | None:
    """The holder that an entry names; None: the topic is placed by the controller. Raises ValidationError."""
    return msgspec.convert(entry[HOLDER], Holder) if HOLDER in entry else None
