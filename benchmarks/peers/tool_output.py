"""Parsers of the output of load tools. Pure: text in, a reading out; ToolFailed for other text."""

from __future__ import annotations

import csv
import json
import re
from itertools import pairwise

from benchmarks.peers.tool import Reading, ToolFailed


def linn_bench(text: str) -> Reading:
    """`linn bench publish --json` and `linn bench consume --json`: the last line."""
    try:
        data = json.loads(text.strip().splitlines()[-1])
        return Reading(float(data["messages_per_s"]), int(data["messages"]))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise _unreadable("linn bench", text) from error


_SENT = re.compile(r"(\d+) records sent, ([\d.]+) records/sec")
_LATENCY = re.compile(r"([\d.]+) ms (50th|99th)")


def producer_performance(text: str) -> Reading:
    """Kafka's ProducerPerformance: the last summary, which is that of the whole run."""
    summaries = [line for line in text.splitlines() if "50th" in line]
    found = _SENT.search(summaries[-1]) if summaries else None
    if found is None:
        raise _unreadable("ProducerPerformance", text)
    latencies = {name: float(ms) * 1000 for ms, name in _LATENCY.findall(summaries[-1])}
    return Reading(float(found[2]), int(found[1]), latencies.get("50th"), latencies.get("99th"))


def consumer_performance(text: str) -> Reading:
    """Kafka's ConsumerPerformance: a header and a row; the rate is that of fetching, without joining the group."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines())]
    for header, row in pairwise(rows):
        if "fetch.nMsg.sec" in header and len(row) == len(header):
            named = dict(zip(header, row, strict=True))
            return Reading(float(named["fetch.nMsg.sec"]), int(named["data.consumed.in.nMsg"]))
    raise _unreadable("ConsumerPerformance", text)


def perf_test(text: str, direction: str) -> Reading:
    """RabbitMQ's PerfTest; `direction` is "sending" or "receiving". It counts nothing itself."""
    found = re.search(rf"{direction} rate avg: ([\d.]+) msg/s", text)
    if found is None:
        raise _unreadable("PerfTest", text)
    return Reading(float(found[1]))


def nats_bench(text: str) -> Reading:
    """`nats bench js` with one client: its statistics. It ends with an error where it did not do all."""
    found = re.findall(r"stats: ([\d,]+) msgs/sec", text)
    if len(found) != 1:
        raise _unreadable("nats bench", text)
    return Reading(float(found[0].replace(",", "")))


def redis_benchmark(text: str) -> Reading:
    """`redis-benchmark --csv`: a header and a row; a latency is that of a whole pipeline."""
    rows = [row for row in csv.reader(text.splitlines()) if row]
    for header, row in pairwise(rows):
        if {"rps", "p50_latency_ms", "p99_latency_ms"} <= set(header) and len(row) == len(header):
            named = dict(zip(header, row, strict=True))
            p50, p99 = (float(named[f"{name}_latency_ms"]) * 1000 for name in ("p50", "p99"))
            return Reading(float(named["rps"]), None, p50, p99)
    raise _unreadable("redis-benchmark", text)


def _unreadable(tool: str, text: str) -> ToolFailed:
    return ToolFailed(f"{tool} said nothing that can be read: {text[-300:].strip()!r}")
