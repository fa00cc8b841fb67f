"""Merging of results: the brokers of a cluster answer some verbs together. Results are decoded JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Merge = Callable[[Sequence[Any]], Any]
"""Puts results together: that of the broker that was asked, if it has one, comes first. There is at least one."""
DELIVERIES_MAX = 1_000
"""Decided deliveries in one answer, as one broker gives them."""


def _led(*keys: str) -> Merge:
    """Merge lists of what topics have: the entry of the broker that leads the topic, which has partitions, stands."""

    def merge(results: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        first, *others = results
        found = {tuple(item[key] for key in keys): item for item in first}
        for result in others:
            found |= {tuple(item[key] for key in keys): item for item in result if item.get("partitions", True)}
        return [found[key] for key in sorted(found)]

    return merge


topics = _led("name")
queues = _led("topic", "subscription")


def groups(results: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Merge lists of groups. Each broker has the part of a group that reads the topics that it leads."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        for item in result:
            parts.setdefault(item["group"], []).append(item)
    return [_group(parts[name]) | {"members": sum(it["members"] for it in parts[name])} for name in sorted(parts)]


def group(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge descriptions of a group."""
    return _group(results) | {
        "members": [member for result in results for member in result["members"]],
        "offsets": offsets([result["offsets"] for result in results]),
    }


def _group(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        **parts[0],
        "topics": sorted({topic for part in parts for topic in part["topics"]}),
        "epoch": max(part["epoch"] for part in parts),
        "lag": sum(part["lag"] for part in parts),
    }


def offsets(results: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Merge offsets of a group."""
    return sorted([item for result in results for item in result], key=lambda item: (item["topic"], item["partition"]))


def nothing(_: Sequence[Any]) -> dict[str, Any]:
    """Merge results that tell nothing."""
    return {}


def deliveries(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge decided deliveries, the first ones of all."""
    found = [item for result in results for item in result["deliveries"]]
    found.sort(key=lambda item: (item["topic"], item["subscription"], item["partition"], item["first"]))
    more = sum(result["more"] for result in results) + max(0, len(found) - DELIVERIES_MAX)
    return {"deliveries": found[:DELIVERIES_MAX], "more": more}
