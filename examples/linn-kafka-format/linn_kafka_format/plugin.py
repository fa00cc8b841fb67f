"""Registers the format `kafka-v2`, number 2."""

from __future__ import annotations

from linn.api import FormatKind, hookimpl
from linn_kafka_format.record_batch import KafkaRecordBatches

NUMBER = 2


@hookimpl
def linn_register_format() -> FormatKind:
    """Called once, when the broker starts."""
    return FormatKind("kafka-v2", NUMBER, KafkaRecordBatches)
