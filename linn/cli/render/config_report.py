"""Report of `linn check`: problems of a configuration file, and its meaning, as tables or as JSON.

Separate from the command, which has to load without the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape

from linn.cli.render.console import console, print_json, print_text
from linn.cli.render.table import number, print_table, wide
from linn.core.config.config import Config
from linn.core.config.decoder import encode_settings
from linn.core.config.problem import Problem, Problems
from linn.core.config.topic_settings import TopicSettings, deliveries_max
from linn.core.config.units import format_size_bytes
from linn.core.env.secret import masked
from linn.core.errors.texts import counted
from linn.core.queue.dispatch_order import ORDER_WINDOW

_COLOURS = {"error": "red", "warning": "yellow", "hint": "cyan"}


def print_report(file: str, config: Config | None, problems: Problems, *, as_json: bool) -> None:
    """Print a report. `config`: None where the file has errors."""
    if as_json:
        print_json(_data(file, config, problems))
    else:
        _print(file, config, problems)


def _data(file: str, config: Config | None, problems: Problems) -> dict[str, Any]:
    return {
        "file": file,
        "ok": config is not None,
        "problems": [_problem_data(problem) for problem in problems.in_order()],
        "meaning": _meaning(config) if config is not None else None,
    }


def _problem_data(problem: Problem) -> dict[str, Any]:
    return {
        "line": problem.line,
        "key": problem.key,
        "text": problem.text,
        "severity": problem.severity,
        "code": problem.error.code if problem.severity == "error" else None,
    }


def _meaning(config: Config) -> dict[str, Any]:
    return {
        "broker": encode_settings(config.broker),
        "listeners": {
            name: {"address": listener.address, "protocol": listener.protocol, "tls": listener.tls}
            for name, listener in config.listeners.items()
        },
        "exchanges": {
            name: {"type": exchange.kind, "alternate": exchange.alternate, "bindings": _targets(config, name)}
            for name, exchange in config.exchanges.items()
        },
        "topics": {name: encode_settings(topic) | masked(topic.services) for name, topic in config.topics.items()},
        "cluster": _cluster(config),
        "services": {name: encode_settings(settings) for name, settings in config.services.items()},
    }


def _cluster(config: Config) -> dict[str, Any] | None:
    cluster = config.cluster
    return None if cluster is None else {"name": cluster.name, "node": cluster.node, "store": cluster.store}


def _print(file: str, config: Config | None, problems: Problems) -> None:
    for problem in problems.in_order():
        colour = _COLOURS[problem.severity]
        code = f" [{problem.error.code}]" if problem.severity == "error" else ""
        line = escape(f"{problems.describe(problem)}{code}")
        console().print(f"[{colour}]{problem.severity}[/] {line}", soft_wrap=True)
    if config is None:
        text = f"{file}: {counted(problems.error_count, 'error')}: a broker would not start"
        print_text(text)
        return
    warnings = sum(problem.severity == "warning" for problem in problems.found)
    but = f", with {counted(warnings, 'warning')}" if warnings else ""
    print_text(f"{file} is good{but}. Data goes to {config.broker.data_dir}.")
    if config.cluster is not None:
        cluster = config.cluster
        print_text(f"It is node {cluster.node} of the cluster {cluster.name}, with the metadata store {cluster.store}.")
    _print_listeners(config)
    if config.exchanges:
        _print_exchanges(config)
    if config.topics:
        _print_topics(config)


def _print_listeners(config: Config) -> None:
    rows = [
        [name, listener.address, listener.protocol, listener.tls or "none"]
        for name, listener in config.listeners.items()
    ]
    print_table(["listener", "address", "protocol", "TLS"], rows, "Clients connect to")


def _print_exchanges(config: Config) -> None:
    rows = []
    for name, exchange in config.exchanges.items():
        targets = [
            f"{'exchange ' * (target['to'] == 'exchange')}{target['name']} ({_condition(target)})"
            for target in _targets(config, name)
        ]
        rows.append([name, exchange.kind, ", ".join(targets) or "nobody yet", exchange.alternate or "nobody"])
    print_table(["exchange", "type", "sends to", "and the rest to"], rows, "Exchanges")


def _targets(config: Config, exchange: str) -> list[dict[str, Any]]:
    """Return the targets of an exchange, by the bindings of the file."""
    return [
        {"to": to, "name": name, "key": binding.key, "arguments": binding.arguments}
        for to, bound in (("exchange", config.exchanges), ("topic", config.topics))
        for name, settings in bound.items()
        for binding in settings.bindings
        if binding.exchange == exchange
    ]


def _condition(target: Mapping[str, Any]) -> str:
    parts = [target["key"]] if target["key"] else []
    return ", ".join([*parts, *(f"{name} = {value}" for name, value in target["arguments"].items())]) or "any"


def _print_topics(config: Config) -> None:
    rows = []
    for name, topic in config.topics.items():
        encoded = encode_settings(topic)
        means = [str(encoded.get("storage", "")), _delivery(topic)]
        rows.append([name, topic.kind, str(topic.partitions), *means, kept(topic), _when_it_fails(topic)])
    less = (wide(number("partitions")), wide("storage"), wide("delivery"))
    print_table(["topic", "kind", *less, "kept", "when it fails"], rows, "Topics")


def _delivery(topic: TopicSettings) -> str:
    """Describe which record a consumer gets next, and how often."""
    encoded = encode_settings(topic)
    by = f" by {topic.order_by}" if topic.order_by else ""
    levels = f", {topic.levels} levels" if topic.levels else ""
    levels += "".join([f", {name} {weight} times" for name, weight in (topic.weights or {}).items()])
    among = f" among {topic.order_window:,}" if topic.order_window != ORDER_WINDOW else ""
    order = [f"order {topic.order}{by}{levels}{among}"] if topic.order != "fifo" else []
    one = ["to one consumer"] if topic.consumers == "one" else []
    once = [] if topic.dedup_ms is None else [f"an id once in {encoded['dedup']}"]
    return ", ".join([str(encoded.get("delivery", "")), *order, *one, *once])


def kept(topic: TopicSettings) -> str:
    """Describe the retention of a topic."""
    encoded = encode_settings(topic)
    parts = []
    size = "" if topic.retention_bytes is None else f", {format_size_bytes(topic.retention_bytes)} a partition"
    if topic.kind in ("queue", "both"):
        parts.append("until settled" if topic.ttl_ms is None else f"until settled, {encoded['ttl']} at most")
        parts += [f"settled for {encoded['keep']}{size}"] if topic.kind == "queue" and topic.keep_ms else []
    if topic.kind in ("stream", "both"):
        parts.append(f"{encoded['retention']}{size}")
    records = [] if topic.records_max is None else [counted(topic.records_max, "record")]
    sizes = [] if topic.bytes_max is None else [format_size_bytes(topic.bytes_max)]
    if sizes or records:
        parts.append(f"at {' or '.join([*sizes, *records])}: {topic.overflow}")
    parts += [f"deleted after {encoded['expires']} without a consumer"] if topic.expires_ms is not None else []
    parts += ["deleted when its last consumer leaves"] if topic.delete_when == "unused" else []
    parts += [f"status for {encoded['status']}"] if topic.status_ms is not None else []
    return "; ".join(parts)


def _when_it_fails(topic: TopicSettings) -> str:
    """Describe the fate of a record that a consumer does not ack."""
    if topic.kind == "stream":
        return "read again"
    encoded = encode_settings(topic)
    if topic.lease_ms is None:
        return "not delivered again"
    most = deliveries_max(topic)
    limit = "" if most is None else f", {counted(most, 'attempt')} at most"
    key = "" if topic.dead_letter_key is None else f' with the key "{topic.dead_letter_key}"'
    exchange = f"exchange {topic.dead_letter_exchange}{key}" if topic.dead_letter_exchange else None
    dead = topic.dead_letter or exchange
    end = f", then to {dead}" if dead else ""
    when = "when its connection ends" if encoded["lease"] == "connection" else f"after {encoded['lease']}"
    growth = "" if topic.redelivery_backoff == "fixed" else f" ({topic.redelivery_backoff})"
    pause = f", {encoded['redelivery_delay']} after it is returned{growth}" if topic.redelivery_delay_ms else ""
    return f"back {when}{pause}{limit}{end}"
