"""The tier of each test: its mark, or what `WHERE` has for its file or its folder, or `test`."""

from __future__ import annotations

from pathlib import Path, PurePath

import pytest

TESTS = Path(__file__).parent
TIERS = ("quick", "test", "system", "perf", "soak")
"""CONTRIBUTING.md says what is in each. In the first two, no verdict depends on the speed of the machine."""
DEFAULT = "test"
WHERE = {
    "batch": "quick",
    "batch/test_flat_routes.py": "test",
    "batch/test_gaps.py": "test",
    "batch/test_hostile_batches.py": "test",
    "batch/test_round_trip.py": "test",
    "batch/test_slices.py": "test",
    "benchmarks": "system",
    "benchmarks/test_peers.py": "quick",
    "benchmarks/test_peers_report.py": "quick",
    "benchmarks/test_ratios.py": "quick",
    "broker/test_fairness.py": "perf",
    "broker/test_many_connections.py": "system",
    "broker/test_stop_under_load.py": "system",
    "cli": "system",
    "cli/test_arguments.py": "test",
    "cli/test_cli_reference.py": "test",
    "cli/test_definition_text.py": "quick",
    "cli/test_doctor_cluster.py": "quick",
    "cli/test_exit_code.py": "test",
    "cli/test_lint.py": "test",
    "clients": "system",
    "config": "quick",
    "crashes": "system",
    "demo": "system",
    "deploy": "system",
    "deploy/test_alerts.py": "quick",
    "demo/test_counts.py": "test",
    "demo/test_payments.py": "test",
    "demo/test_child_processes.py": "quick",
    "demo/test_spark_counts.py": "quick",
    "demo/test_view.py": "quick",
    "env": "quick",
    "examples": "system",
    "exchanges": "quick",
    "exchanges/test_exchange_conformance.py": "test",
    "exchanges/test_routing_model.py": "test",
    "exchanges/test_exchange_conformance.py::test_no_message_takes_long": "perf",
    "group": "quick",
    "hostile": "system",
    "hostile/test_hostile_page.py": "quick",
    "linearizability": "system",
    "metadata_stores/test_etcd_conformance.py": "system",
    "metadata_stores/test_etcd_faults.py": "system",
    "metadata_stores/test_etcd_messages.py": "quick",
    "metadata_stores/test_etcd_security.py": "system",
    "models": "test",
    "mutations": "system",
    "mutations/test_mutation_seam.py": "test",
    "observability/test_exposition.py": "quick",
    "observability/test_metric_registry.py": "quick",
    "observability/test_monitoring_http.py": "system",
    "participants/test_postgres_participant.py": "system",
    "participants/test_redis_participant.py": "system",
    "plugins": "quick",
    "plugins/test_plugin_skeleton.py": "system",
    "predicates": "quick",
    "predicates/test_predicate_parser.py": "test",
    "predicates/test_predicate_truth.py": "test",
    "protocol": "quick",
    "security/test_open_addresses.py": "quick",
    "security/test_planted_holes.py": "system",
    "security/test_tls_commands.py": "system",
    "security/test_tls_judges.py": "system",
    "spark": "quick",
    "spark/test_spark_processes.py": "system",
    "spark/test_spark_login.py": "system",
    "spark/test_driver.py": "system",
    "spark/test_driver_to_topics.py": "system",
    "spark/test_jdbc_sink.py": "system",
    "spark/test_json_values.py": "system",
    "spark/test_lake_sinks.py": "system",
    "spark/test_output_folder.py": "system",
    "spark/test_spark_connect.py": "system",
    "spark/test_kafka_oracle.py": "soak",
    "spark/test_restored_checkpoint.py": "system",
    "spark/test_spark_source.py": "test",
    "spark/test_write_job.py": "test",
    "spark/test_spark_cluster.py": "system",
    "spark/test_spark_connections.py": "system",
    "spark/test_spark_kills.py": "system",
    "spark/test_queries_over_brokers.py": "system",
    "spark/test_pipelines_over_brokers.py": "system",
    "spark/test_spark_memory.py": "soak",
    "spark/test_spark_page.py": "system",
    "spark/test_worker_daemon.py": "system",
    "spark/test_spark_sink.py": "system",
    "spark/test_spark_stream.py": "system",
    "subscription": "quick",
    "subscription/test_semantics_conformance.py": "test",
    "subscription/test_offset_ranges.py": "test",
    "subscription/test_subscription_model.py": "test",
    "subscription/test_subscription_walk.py": "test",
    "test_front_page.py": "system",
    "test_house.py": "quick",
    "test_no_secrets.py": "quick",
    "test_prose.py": "quick",
    "test_tiers.py": "quick",
    "testing_fixtures/test_crashable_broker.py": "system",
    "testing_fixtures/test_pytest_plugin.py": "system",
    "transactions": "quick",
}
"""Folders, and what is in another tier than its folder: files, and tests that a file has from a conformance suite.

A new file needs no line where its folder's holds.
"""
assert [name for name in WHERE if not (TESTS / name.partition("::")[0]).exists()] == [], "renamed or gone"

MEASURED = (
    "batch/test_hostile_batches.py",
    "batch/test_routes.py",
    "broker/test_stop_under_load.py",
    "crashes/test_recovery_time.py",
    "fuzz",
    "hostile",
)
"""Tests that `make perf` runs as well, with bounds on time that they don't have otherwise (see `stopwatch.py`)."""


def tier_of(item: pytest.Item) -> str:
    """Find the one tier of a test. Raises UsageError where it is marked with two."""
    marked = sorted({marker.name for marker in item.iter_markers() if marker.name in TIERS})
    if len(marked) > 1:
        raise pytest.UsageError(f"{item.nodeid} is marked {' and '.join(marked)}: a test is in one tier")
    places = _places_of(item.path, getattr(item, "originalname", item.name))
    found = [WHERE[name] for name in places if name in WHERE]
    return [*marked, *found, DEFAULT][0]


def has_none_of(path: Path, wanted: set[str]) -> bool:
    """Tell whether a file surely has no test of these tiers: its own is another, and no mark in it is theirs."""
    if not path.name.startswith("test_") or not wanted or not wanted <= {*TIERS}:
        return False
    places = _places_of(path)
    whole = next((WHERE[name] for name in places if name in WHERE), DEFAULT)
    single = {tier for name, tier in WHERE.items() if name.startswith(f"{places[1]}::")}
    text = path.read_text(encoding="utf-8")
    marks = {*(f"mark.{tier}" for tier in wanted), *(["tiered("] if "quick" in wanted else [])}
    return not wanted & {whole, *single} and not any(mark in text for mark in marks)


def put_into_tiers(items: list[pytest.Item]) -> None:
    """Mark each test with its tier, and with `measured` where it is."""
    for item in items:
        tier = tier_of(item)
        if item.get_closest_marker(tier) is None:
            item.add_marker(tier)
        if tier != "soak" and any(name in MEASURED for name in _places_of(item.path)):
            item.add_marker("measured")


def _places_of(path: Path, test: str = "") -> list[str]:
    """List a test, its file and its folders as `WHERE` may name them, from the inside out."""
    inside = PurePath(path.relative_to(TESTS))
    return [f"{inside}::{test}", str(inside), *map(str, inside.parents)]
