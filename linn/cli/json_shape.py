"""Shapes of the JSON that commands print, shown on the reference page and enforced by tests.

A shape is a JSON document with types in place of values: "text", "number", "boolean" or "any"; with "?" appended, null
is allowed. A key in capitals stands for any key, and a list holds any number of its one item.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PARTITION = {"start": "number", "end": "number", "records": "number", "bytes": "number"}
_TOPIC = {
    "name": "text",
    "id": "text",
    "settings": {"SETTING": "any"},
    "partitions": [_PARTITION],
    "producers": "number",
    "duplicates": "number",
    "queue": {"unsettled": "number", "leased": "number", "decided": "number", "consumers": "number"},
}
_BINDING = {
    "exchange": "text",
    "to": "text",
    "target": "text",
    "key": "text",
    "arguments": {"NAME": "any"},
}
_EXCHANGE = {
    "name": "text",
    "type": "text",
    "alternate": "text?",
    "settings": {"SETTING": "any"},
    "bindings": [{"topic": "text", "exchange": "text", "key": "text", "arguments": {"NAME": "any"}}],
}
_GROUP = {"group": "text", "topics": ["text"], "epoch": "number", "assignor": "text", "lag": "number"}
_GROUP_PLACE = {
    "topic": "text",
    "partition": "number",
    "offset": "number?",
    "text": "text",
    "lag": "number",
    "start": "number",
    "end": "number",
    "member": "text?",
}
_STATES = dict.fromkeys(("ready", "returned", "leased", "decided", "delayed", "dead"), "number")
_QUEUE = {
    "topic": "text",
    "subscription": "text",
    "unsettled": "number",
    **_STATES,
    "damaged": "number",
    "consumers": "number",
}
_QUEUE_DETAILS = {
    **_QUEUE,
    "by_partition": [
        {
            "partition": "number",
            **_STATES,
            "settled_before": "number",
            "end": "number",
            "settled": [["number"]],
            "damaged": [["number"]],
        }
    ],
    "by_consumer": [{"consumer": "number", "name": "text", "leased": "number", "decided": "number"}],
}
_DECIDED = {
    "topic": "text",
    "subscription": "text",
    "partition": "number",
    "delivery_id": "number",
    "first": "number",
    "end": "number",
    "consumer": "text",
    "attempt": "number",
    "since_ms": "number",
    "connected": "boolean",
}
_TRANSACTION = {
    "name": "text",
    "state": "text",
    "producer_id": "number",
    "epoch": "number",
    "number": "number",
    "open_s": "number?",
    "timeout_s": "number?",
    "partitions": "number",
    "branches": "number",
    "offsets": "number",
    "queue_partitions": "number",
    "since_ms": "number",
}
_PIPELINE = {
    "name": "text",
    "topics": ["text"],
    "format": "text",
    "path": "text?",
    "driver": "text",
    "state": "text",
    "reason": "text?",
    "remedy": "text?",
    "restarts": "number",
    "progress": {
        "batches": "number",
        "rows": "number",
        "rows_per_s": "number",
        "lag": "number?",
        "duration_ms": "number?",
        "batch": "number?",
        "time_ms": "number?",
        "offsets": {"TOPIC": {"PARTITION": "number"}},
    },
}
_DRIVER = {
    "name": "text",
    "state": "text",
    "failures": "number",
    "next_start_s": "number?",
    "spark": "text?",
    "application": "text?",
    "ui": "text?",
}
_CHANGED_PIPELINES = {"pipelines": [{"name": "text", "state": "text"}]}
_DEAD_LETTER = {
    "partition": "number",
    "offset": "number",
    "id": "text",
    "from_topic": "text?",
    "from_partition": "number?",
    "from_offset": "number?",
    "reason": "text?",
    "error": "text?",
    "attempts": "number?",
    "time_ms": "number?",
    "value": "any",
}
_DEAD_LETTERS = {"topic": "text", "waiting": "number", "sources": ["text"], "messages": [_DEAD_LETTER]}
_MOVED = {"source": "text", "moved": "number", "to": {"TARGET": "number"}, "stay": "number", "dry_run": "boolean"}
_MEASURED = {
    "what": "text",
    "messages": "number",
    "bytes": "number",
    "seconds": "number",
    "messages_per_s": "number",
    "bytes_per_s": "number",
}
_PERCENTILES = dict.fromkeys(("p50", "p90", "p99", "p99_9", "max"), "number?")
_MESSAGE = {
    "topic": "text",
    "partition": "number",
    "offset": "number",
    "attempt": "number",
    "id": "text",
    "timestamp_ms": "number",
    "key": "any",
    "routing_key": "text",
    "labels": {"NAME": "any"},
    "headers": [["text", "any"]],
    "value": "any",
}
_DUMPED = {
    "file": "text",
    "byte": "number",
    "bytes": "number",
    "offset": "number?",
    "count": "number?",
    "end_offset": "number?",
    "first_timestamp_ms": "number?",
    "append_time_ms": "number?",
    "codec": "number?",
    "format": "number?",
    "stamp_ok": "boolean",
    "body_ok": "boolean",
    "damage": "text?",
}
_PLUGIN = {"name": "text", "module": "text", "distribution": "text", "state": "text", "error": "text?"}
_BROUGHT = {"what": "text", "name": "text"}
_SETTING = {"key": "text", "default": "any", "help": "text"}

_TOP = {
    "broker": {
        "name": "text",
        "version": "text",
        "uptime_s": "number",
        "memory_bytes": "number",
        "descriptors": "number",
        "descriptors_max": "number",
        "connections": "number",
        "open_transactions": "number",
        "loop_lag_ms": "number?",
        "publish_errors_per_s": "number?",
    },
    "topics": [
        {
            "topic": "text",
            "in_records_per_s": "number?",
            "in_bytes_per_s": "number?",
            "out_records_per_s": "number?",
            "out_bytes_per_s": "number?",
            "records": "number",
            "bytes": "number",
            "consumers": "number",
            "ready": "number?",
            "leased": "number?",
            "decided": "number?",
            "unsettled": "number?",
            "redelivered_per_s": "number?",
            "dead_letters": "number?",
        }
    ],
    "groups": [{"topic": "text", "group": "text", "members": "number", "lag": "number"}],
    "pipelines": [
        {
            "pipeline": "text",
            "state": "text",
            "rows_per_s": "number?",
            "rows": "number",
            "lag": "number?",
            "batch_s": "number?",
            "restarts": "number",
        }
    ],
    "connections": [
        {
            "connection": "number",
            "peer": "text",
            "listener": "text",
            "protocol": "text",
            "in_bytes_per_s": "number?",
            "out_bytes_per_s": "number?",
            "inflight_requests": "number",
            "unsent_bytes": "number",
            "held_bytes": "number",
        }
    ],
    "trouble": "text?",
}

SHAPES: Mapping[str, Any] = {
    "linn init": {"file": "text"},
    "linn check": {
        "file": "text",
        "ok": "boolean",
        "problems": [{"line": "number", "key": "text", "text": "text", "severity": "text", "code": "text?"}],
        "meaning": "any",
    },
    "linn topics list": [_TOPIC],
    "linn topics describe": _TOPIC,
    "linn topics create": {"created": "boolean"},
    "linn topics alter": {
        "changed": ["text"],
        "warnings": [{"key": "text", "file": "text", "line": "number", "text": "text"}],
        "written": "text?",
    },
    "linn topics delete": {"deleted": "text"},
    "linn exchanges list": [_EXCHANGE],
    "linn exchanges describe": _EXCHANGE,
    "linn exchanges create": {"created": "boolean"},
    "linn exchanges delete": {"deleted": "text"},
    "linn bindings list": [_BINDING],
    "linn bindings describe": [_BINDING],
    "linn bindings create": {"exchange": "text", "target": "text", "created": "boolean"},
    "linn bindings delete": {"exchange": "text", "target": "text", "deleted": "boolean"},
    "linn groups list": [_GROUP | {"members": "number"}],
    "linn groups describe": _GROUP
    | {
        "members": [
            {
                "member": "text",
                "is_static": "boolean",
                "epoch": "number",
                "session_s": "number",
                "topics": ["text"],
                "partitions": "number",
            }
        ],
        "offsets": [_GROUP_PLACE],
    },
    "linn groups reset": [_GROUP_PLACE],
    "linn groups delete": {"deleted": "text"},
    "linn queues list": [_QUEUE],
    "linn queues describe": _QUEUE_DETAILS,
    "linn subscriptions list": [_QUEUE],
    "linn subscriptions describe": _QUEUE_DETAILS,
    "linn subscriptions create": {"created": "boolean"},
    "linn subscriptions delete": {"deleted": "text"},
    "linn publish": {
        "count": "number",
        "topic": "text?",
        "copies": "number",
        "partitions": {"PARTITION": ["number"]},
    },
    "linn consume": _MESSAGE,
    "linn move": _MOVED,
    "linn copy": {"copied": "number", "topics": {"TOPIC": "number"}, "offsets": "number"},
    "linn dead-letters list": [_DEAD_LETTERS],
    "linn dead-letters replay": _MOVED,
    "linn deliveries list": {"deliveries": [_DECIDED], "more": "number"},
    "linn deliveries describe": {
        "deliveries": [_DECIDED],
        "more": "number",
        "records": [{"offset": "number", "key": "any", "size": "number"}],
    },
    "linn deliveries resolve": {"records": "number", "outcome": "text", "dry_run": "boolean"},
    "linn transactions list": {"transactions": [_TRANSACTION], "more": "number"},
    "linn transactions describe": {
        **_TRANSACTION,
        "wrote": [{"topic": "text", "partition": "number", "held_from": "number?"}],
        "holds": [{"topic": "text", "subscription": "text", "partition": "number", "records": "number"}],
        "commits": [{"group": "text", "topic": "text", "partition": "number", "offset": "number"}],
    },
    "linn transactions abort": {
        "number": "number",
        "open_s": "number",
        "partitions": "number",
        "offsets": "number",
        "queue_partitions": "number",
        "dry_run": "boolean",
    },
    "linn spark status": {"pipelines": [_PIPELINE], "drivers": [_DRIVER]},
    "linn spark start": _CHANGED_PIPELINES,
    "linn spark stop": _CHANGED_PIPELINES,
    "linn spark restart": _CHANGED_PIPELINES,
    "linn spark files": {"files": ["text"]},
    "linn spark logs": {"driver": "text", "number": "number", "time_ms": "number", "text": "text"},
    "linn browse": _MESSAGE,
    "linn connections close": {"closed": "number"},
    "linn connections list": [
        {
            "number": "number",
            "peer": "text",
            "client": "text",
            "listener": "text",
            "protocol": "text",
            "open_s": "number",
            "received_bytes": "number",
            "sent_bytes": "number",
            "inflight_requests": "number",
            "unsent_bytes": "number",
            "held_bytes": "number",
            "subscriptions": [{"topic": "text", "group": "text", "shared": "text", "name": "text", "held": "number"}],
        }
    ],
    "linn ping": {"broker": "text", "version": "text", "round_trips_ms": ["number"]},
    "linn purge": {"purged": "number"},
    "linn route explain": {
        "exchange": "text",
        "message": {
            "routing_key": "text",
            "labels": {"NAME": "any"},
            "key": "text?",
            "headers": {"NAME": "text"},
            "size": "number",
        },
        "topics": ["text"],
        "steps": ["any"],
    },
    "linn route diff": {
        "same": "boolean",
        "messages": "number",
        "exchanges": ["text"],
        "changes": [
            {
                "exchange": "text",
                "before": "any",
                "after": "any",
                "messages": "number",
                "lines": ["number"],
                "routing_key": "text",
            }
        ],
    },
    "linn plugins list": {"plugins": [{**_PLUGIN, "brings": [_BROUGHT]}], "error": "text?"},
    "linn plugins new": {"folder": "text", "files": ["text"]},
    "linn plugins describe": {**_PLUGIN, "brings": [{**_BROUGHT, "settings": [_SETTING]}]},
    "linn bench publish": {**_MEASURED, "call_p50_ms": "number", "call_p99_ms": "number"},
    "linn bench consume": _MEASURED,
    "linn bench latency": {
        "messages": "number",
        "delivered": "number",
        "seconds": "number",
        "confirmed_ms": _PERCENTILES,
        "delivered_ms": _PERCENTILES,
    },
    "linn bench soak": {
        "seconds": "number",
        "published": "number",
        "confirmed": "number",
        "unknown": "number",
        "delivered": "number",
        "duplicates": "number",
        "lost": "number",
        "damaged": "number",
        "messages_per_s": "number",
        "errors": {"CODE": "number"},
        "ok": "boolean",
    },
    "linn bench soak --producers": {
        "producers": "number",
        "processes": "number",
        "seconds": "number",
        "target_per_s": "number",
        "confirmed": "number",
        "confirmed_per_s": "number",
        "bytes_per_s": "number",
        "share": "number",
        "records_per_publish": "number",
        "sends_blocked": "number",
        "lost_connections": "number",
        "unanswered": "number",
        "errors": {"CODE": "number"},
        "confirmed_ms": dict.fromkeys(("p50", "p99", "p99_9", "max"), "number?"),
        "in_use": dict.fromkeys(
            (
                "broker_processor",
                "load_processor",
                "machine_processors",
                "broker_memory",
                "broker_descriptors",
                "disk",
            ),
            "number?",
        ),
        "full_first": "text?",
        "full_after_s": "number?",
    },
    "linn definitions export": {
        "exchanges": {"NAME": {"SETTING": "any"}},
        "topics": {"NAME": {"SETTING": "any"}},
    },
    "linn definitions import": {
        "file": "text",
        "dry_run": "boolean",
        "changes": [
            {
                "action": "text",
                "noun": "text",
                "name": "text",
                "settings": ["text"],
                "binding": "any",
                "done": "boolean",
            }
        ],
        "unchanged": {"NOUN": "number"},
        "problems": [{"line": "number", "key": "text", "text": "text", "code": "text"}],
    },
    "linn top": _TOP,
    "linn recover": [
        {
            "partition": "text",
            "cut": "boolean",
            "place": "text",
            "offset": "number",
            "reason": "text",
            "bytes": "number",
            "batches": "number",
            "records": "number",
        }
    ],
    "linn dump": _DUMPED,
    "linn dump --records": {
        **_DUMPED,
        "records": [{"offset": "number", "key": "any", "routing_key": "text", "value": "any"}],
    },
    "linn doctor": {
        "ok": "boolean",
        "findings": [{"name": "text", "state": "text", "found": "text", "advice": "text"}],
        "holds": {
            "connections": "number?",
            "connections_bound": "text?",
            "rate_per_s": "number",
            "size": "number",
            "kept_s": "number?",
            "published_per_s": "number?",
            "consumed_per_s": "number?",
            "one_by_one_per_s": "number?",
        },
    },
}
"""Shapes by command, or by command and the option that changes the shape. A stream has no `queue`; a binding of an
exchange has either `topic` or `exchange`."""

OPTIONAL = ("queue", "topic", "exchange", "messages")
"""Keys that are left out where they do not apply."""
EACH_LINE = {
    "linn consume": "--format json",
    "linn browse": "--format json",
    "linn spark logs": "--json",
    "linn dump": "--json",
    "linn dump --records": "--json",
}
"""Commands that print one object a line, by the option that makes them do so."""
