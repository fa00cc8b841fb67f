"""What of the client's classes is public: names without an underscore, but for those that its own parts use."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

_INTERNAL = {
    "linn.client.client.Client": [
        "backoff_of", "close", "goodbye", "link", "ready_link", "request", "start", "time_limit", "want_link",
    ],
    "linn.client.producer.Producer": ["follow", "give_up", "link_up", "prepared", "take", "too_large"],
    "linn.client.consumer.Consumer": [
        "arrived", "assigned", "ended", "give_up", "hand_to", "later", "link_down", "link_up", "news", "pulled",
        "raise_errors", "refused", "set_back", "subscribed", "take", "take_unread", "taken_max",
    ],
    "linn.client.received.ReceivedBatch": ["indexes", "load"],
    "linn.client.message.Batch": ["handed_over", "is_wanted", "settle"],
    "linn.client.options.ClientOptions": ["backoff_of", "is_used_up"],
    "linn.client.blocking.Client": ["forget"],
    "linn.client.blocking_consumer.Consumer": ["settle", "step_batch"],
    "linn.client.blocking_message.Batch": ["settle"],
}  # fmt: skip


def public_classes(module: object) -> list[type]:
    """What `linn.client` or `linn.sync` exports, ports left out."""
    exported = [getattr(module, name) for name in module.__all__]  # type: ignore[attr-defined]
    return [one for one in exported if inspect.isclass(one) and not getattr(one, "_is_protocol", False)]


def own_classes(public: type) -> Iterator[type]:
    """The class and those of linn's that it inherits from."""
    return (one for one in public.__mro__ if one.__module__.startswith("linn."))


def public_members(public: type) -> dict[str, object]:
    """Methods and properties by name, inherited ones included."""
    found: dict[str, object] = {}
    for one in own_classes(public):
        internal = _INTERNAL.get(f"{one.__module__}.{one.__qualname__}", ())
        for name, member in vars(one).items():
            described = inspect.isfunction(member) or isinstance(member, property)
            if described and not name.startswith("_") and name not in internal:
                found.setdefault(name, member)
    return found


def public_methods(public: type) -> dict[str, object]:
    """Methods by name."""
    return {name: member for name, member in public_members(public).items() if inspect.isfunction(member)}
