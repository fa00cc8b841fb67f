"""Shapes of the JSON that commands print, shown on the reference page and enforced by tests.

A shape is a JSON document with types in place of values: "text", "number", "boolean" or "any"; with "?" appended, null
is allowed. A key in capitals stands for any key, and a list holds any number of its one item. The shape of a verb's
result follows from its type in `linn.verbs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

from linn import verbs
from linn.descriptions import TopicSettings

_WORDS = {str: "text", int: "number", float: "number", bool: "boolean", Any: "any"}


def shape_of(described: Any) -> Any:
    """Return the shape of a type."""
    if described is TopicSettings:
        return {"SETTING": "any"}
    if is_typeddict(described):
        return {key: shape_of(inner) for key, inner in get_type_hints(described).items()}
    origin, inner = get_origin(described), get_args(described)
    if origin in (list, dict):
        return [shape_of(inner[0])] if origin is list else {"NAME": shape_of(inner[1])}
    if origin is Literal:
        return "text"
    if NoneType in inner:
        return f"{shape_of(inner[0])}?"
    return _WORDS[described]


def _result(verb: verbs.Verb[Any, Any]) -> Any:
    """Return the shape of a verb's result."""
    return shape_of(verb.result)


def _fields(text: str, /, **others: Any) -> dict[str, Any]:
    """Parse a shape from keys listed by type, as in "name state: text, lag: number?", and add other keys."""
    by_type = (part.split(":") for part in text.split(","))
    return {name: kind.strip() for names, kind in by_type for name in names.split()} | others


_BINDING = _fields("exchange to target key: text", arguments={"NAME": "any"})
_PROGRESS = _fields(
    "batches rows rows_per_s: number, lag duration_ms batch time_ms: number?",
    offsets={"TOPIC": {"PARTITION": "number"}},
)
_PIPELINE = _fields(
    "name format driver state: text, path reason remedy: text?, restarts: number", topics=["text"], progress=_PROGRESS
)
_DRIVER = _fields("name state: text, failures: number, next_start_s: number?, spark application ui: text?")
_CHANGED_PIPELINES = {"pipelines": [_fields("name state: text")]}
_DEAD_LETTER = _fields(
    "partition offset: number, id: text, from_topic: text?, from_partition from_offset: number?, "
    "reason error: text?, attempts time_ms: number?, value: any"
)
_DEAD_LETTERS = _fields("topic: text, waiting: number", sources=["text"], messages=[_DEAD_LETTER])
_MOVED = _fields("source: text, moved stay: number, dry_run: boolean", to={"TARGET": "number"})
_MEASURED = _fields("what: text, messages bytes seconds messages_per_s bytes_per_s: number")
_PERCENTILES = _fields("p50 p90 p99 p99_9 max: number?")
_PROPERTIES = _fields("key: any, routing_key: text", labels={"NAME": "any"}, headers=[["text", "any"]])
_CONTENT = _PROPERTIES | {"value": "any"}
_MESSAGE = _fields("topic: text, partition offset attempt: number, id: text, timestamp_ms: number") | _CONTENT
_DUMPED = _fields(
    "file: text, byte bytes: number, offset count end_offset first_timestamp_ms append_time_ms codec format: number?, "
    "stamp_ok body_ok: boolean, damage: text?"
)
_PLUGIN = _fields("name module distribution state: text, error: text?")
_TOP = {
    "broker": _fields(
        "name version: text, "
        "uptime_s memory_bytes descriptors descriptors_max connections open_transactions: number, "
        "loop_lag_ms publish_errors_per_s: number?"
    ),
    "topics": [
        _fields(
            "topic: text, in_records_per_s in_bytes_per_s out_records_per_s out_bytes_per_s: number?, "
            "records bytes consumers: number, "
            "ready leased decided unsettled redelivered_per_s dead_letters: number?"
        )
    ],
    "groups": [_fields("topic group: text, members lag: number")],
    "pipelines": [_fields("pipeline state: text, rows restarts: number, rows_per_s lag batch_s: number?")],
    "connections": [
        _fields(
            "connection: number, peer listener protocol: text, in_bytes_per_s out_bytes_per_s: number?, "
            "inflight_requests unsent_bytes held_bytes: number"
        )
    ],
    "trouble": "text?",
}
_EXPLAINED = _fields("routing_key: text, key: text?, size: number", labels={"NAME": "any"}, headers={"NAME": "text"})
_SOAKED_BY_MANY = _fields(
    "producers processes seconds target_per_s confirmed confirmed_per_s bytes_per_s share records_per_publish: number, "
    "sends_blocked lost_connections unanswered: number",
    errors={"CODE": "number"},
    confirmed_ms=_fields("p50 p99 p99_9 max: number?"),
    in_use=_fields("broker_processor load_processor machine_processors broker_memory broker_descriptors disk: number?"),
    full_first="text?",
    full_after_s="number?",
)
_HOLDS = _fields(
    "rate_per_s size: number, connections_bound: text?, "
    "connections kept_s published_per_s consumed_per_s one_by_one_per_s: number?"
)
_DRY = {"dry_run": "boolean"}
_DECIDED_RECORD = _fields("offset size: number, key: any")
_ABORTED = {key: shape for key, shape in _result(verbs.ABORT_TRANSACTION).items() if key != "warnings"}

SHAPES: Mapping[str, Any] = {
    "linn init": {"file": "text"},
    "linn check": _fields(
        "file: text, ok: boolean",
        problems=[_fields("line: number, key text severity: text, code: text?")],
        meaning="any",
    ),
    "linn topics list": _result(verbs.LIST_TOPICS),
    "linn topics describe": _result(verbs.SHOW_TOPIC),
    "linn topics create": _result(verbs.CREATE_TOPIC),
    "linn topics alter": _result(verbs.ALTER_TOPIC) | {"written": "text?"},
    "linn topics delete": {"deleted": "text"},
    "linn exchanges list": _result(verbs.LIST_EXCHANGES),
    "linn exchanges describe": _result(verbs.SHOW_EXCHANGE),
    "linn exchanges create": _result(verbs.CREATE_EXCHANGE),
    "linn exchanges delete": {"deleted": "text"},
    "linn bindings list": [_BINDING],
    "linn bindings describe": [_BINDING],
    "linn bindings create": _fields("exchange target: text, created: boolean"),
    "linn bindings delete": _fields("exchange target: text, deleted: boolean"),
    "linn groups list": _result(verbs.LIST_GROUPS),
    "linn groups describe": _result(verbs.SHOW_GROUP),
    "linn groups reset": _result(verbs.RESET_GROUP),
    "linn groups delete": {"deleted": "text"},
    "linn queues list": _result(verbs.LIST_SUBSCRIPTIONS),
    "linn queues describe": _result(verbs.SHOW_SUBSCRIPTION),
    "linn subscriptions list": _result(verbs.LIST_SUBSCRIPTIONS),
    "linn subscriptions describe": _result(verbs.SHOW_SUBSCRIPTION),
    "linn subscriptions create": _result(verbs.CREATE_SUBSCRIPTION),
    "linn subscriptions delete": {"deleted": "text"},
    "linn users list": _result(verbs.LIST_USERS),
    "linn users describe": _result(verbs.SHOW_USER),
    "linn users create": _result(verbs.CREATE_USER),
    "linn users alter": _result(verbs.ALTER_USER),
    "linn users delete": {"deleted": "text"},
    "linn users verifier": {"scram": "text"},
    "linn roles list": _result(verbs.LIST_ROLES),
    "linn roles describe": _result(verbs.SHOW_ROLE),
    "linn roles create": _result(verbs.CREATE_ROLE),
    "linn roles alter": _result(verbs.ALTER_ROLE),
    "linn roles delete": {"deleted": "text"},
    "linn can": _result(verbs.CAN_USER),
    "linn whoami": _result(verbs.SHOW_CALLER),
    "linn cluster status": _result(verbs.CLUSTER_STATUS),
    "linn cluster drain": _result(verbs.DRAIN_NODE) | _DRY,
    "linn cluster undrain": _result(verbs.UNDRAIN_NODE) | _DRY,
    "linn cluster remove": _result(verbs.REMOVE_NODE) | _DRY,
    "linn cluster reassign": _result(verbs.REASSIGN_TOPIC) | _DRY,
    "linn cluster cancel": _result(verbs.CANCEL_MOVE) | _DRY,
    "linn cluster balance": _result(verbs.BALANCE_CLUSTER) | _DRY,
    "linn cluster elect": _result(verbs.ELECT_LEADER) | _DRY,
    "linn cluster upgrade": _result(verbs.UPGRADE_CLUSTER) | _DRY,
    "linn cluster moves": _result(verbs.LIST_MOVES),
    "linn audit tail": "any",
    "linn audit verify": _fields("records: number, last: text", problems=["text"]),
    "linn publish": _fields(
        "count copies: number, topic: text?, scheduled: boolean", partitions={"PARTITION": ["number"]}
    ),
    "linn request": {"replies": [_fields("value: any", headers=[["text", "any"]])]},
    "linn status": _result(verbs.FIND_MESSAGES),
    "linn scheduled list": [{"topic": "text"} | _result(verbs.LIST_SCHEDULED)],
    "linn scheduled list --values": [
        _fields("topic: text, count: number", first=[_result(verbs.LIST_SCHEDULED)["first"][0] | _CONTENT])
    ],
    "linn scheduled describe": _result(verbs.LIST_SCHEDULED)["first"][0] | {"message_id": "text"} | _CONTENT,
    "linn scheduled cancel": _result(verbs.CANCEL_SCHEDULED),
    "linn scheduled move": _result(verbs.MOVE_SCHEDULED),
    "linn consume": _MESSAGE,
    "linn move": _MOVED,
    "linn copy": _fields("copied offsets: number", topics={"TOPIC": "number"}),
    "linn dead-letters list": [_DEAD_LETTERS],
    "linn dead-letters describe": _DEAD_LETTER
    | _PROPERTIES
    | {"history": [_fields("topic reason: text, times first_ms last_ms: number")]},
    "linn dead-letters replay": _MOVED,
    "linn deliveries list": _result(verbs.LIST_DELIVERIES),
    "linn deliveries describe": _result(verbs.LIST_DELIVERIES)
    | {"records": [_fields("offset size: number, key: any")]},
    "linn deliveries resolve": _fields("records: number, outcome: text, dry_run: boolean"),
    "linn transactions list": _result(verbs.LIST_TRANSACTIONS),
    "linn transactions describe": _result(verbs.SHOW_TRANSACTION),
    "linn transactions abort": _ABORTED | {"dry_run": "boolean"},
    "linn spark status": {"pipelines": [_PIPELINE], "drivers": [_DRIVER]},
    "linn spark start": _CHANGED_PIPELINES,
    "linn spark stop": _CHANGED_PIPELINES,
    "linn spark restart": _CHANGED_PIPELINES,
    "linn spark files": {"files": ["text"]},
    "linn spark logs": _fields("driver text: text, number time_ms: number"),
    "linn browse": _MESSAGE,
    "linn connections close": {"closed": "number"},
    "linn connections list": _result(verbs.LIST_CONNECTIONS),
    "linn ping": _fields("broker version: text", round_trips_ms=["number"]),
    "linn purge": _result(verbs.PURGE_TOPIC),
    "linn route explain": _fields("exchange: text", message=_EXPLAINED, topics=["text"], steps=["any"]),
    "linn route diff": _fields(
        "same: boolean, messages: number",
        exchanges=["text"],
        changes=[_fields("exchange routing_key: text, before after: any, messages: number", lines=["number"])],
    ),
    "linn plugins list": _fields("error: text?", plugins=[_PLUGIN | {"brings": [_fields("what name: text")]}]),
    "linn plugins new": _fields("folder: text", files=["text"]),
    "linn plugins describe": _PLUGIN
    | {"brings": [_fields("what name: text", settings=[_fields("key help: text, default: any")])]},
    "linn bench publish": _MEASURED | _fields("call_p50_ms call_p99_ms: number"),
    "linn bench consume": _MEASURED,
    "linn bench latency": _fields(
        "messages delivered seconds: number", confirmed_ms=_PERCENTILES, delivered_ms=_PERCENTILES
    ),
    "linn bench soak": _fields(
        "seconds published confirmed unknown delivered duplicates lost damaged messages_per_s: number, ok: boolean",
        errors={"CODE": "number"},
    ),
    "linn bench soak --producers": _SOAKED_BY_MANY,
    "linn definitions export": {"exchanges": {"NAME": {"SETTING": "any"}}, "topics": {"NAME": {"SETTING": "any"}}},
    "linn definitions import": _fields(
        "file: text, dry_run: boolean",
        changes=[_fields("action noun name: text, binding: any, done: boolean", settings=["text"])],
        unchanged={"NOUN": "number"},
        problems=[_fields("line: number, key text code: text")],
    ),
    "linn top": _TOP,
    "linn recover": [
        _fields("partition place reason: text, cut: boolean, offset bytes batches records: number"),
    ],
    "linn dump": _DUMPED,
    "linn dump --records": _DUMPED | {"records": [_fields("offset: number, routing_key: text, key value: any")]},
    "linn doctor": _fields("ok: boolean", findings=[_fields("name state found advice: text")], holds=_HOLDS),
}
"""Shapes by command, or by command and the option that changes the shape. A stream has no `queue`; a binding of an
exchange has either `topic` or `exchange`."""

OPTIONAL = ("queue", "replicas", "topic", "exchange", "messages")
"""Keys that are left out where they do not apply."""
EACH_LINE = {
    "linn consume": "--format json",
    "linn browse": "--format json",
    "linn spark logs": "--json",
    "linn audit tail": "--json",
    "linn dump": "--json",
    "linn dump --records": "--json",
}
"""Commands that print one object a line, by the option that makes them do so."""
