"""The alerts for Prometheus ask for nothing that a broker does not tell, and say what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from linn.core.metrics.registry import METRICS
from linn.spark_plugin.service.plugin import METRICS as OF_SPARK

FILE = Path(__file__).parents[2] / "deploy" / "alerts.yml"
GROUPS: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
KNOWN = {metric.name: metric for metric in (*METRICS, *OF_SPARK)}
SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds."""
OVER_TIME = ("rate", "increase")
DURATION = re.compile(r"\d+(s|m|h)")
CLUSTER_TROUBLES = {
    "linn_cluster_topics_leaderless",
    "linn_cluster_topics_below_minimum",
    "linn_cluster_topics_unfit",
    "linn_cluster_replicas_failing",
    "linn_cluster_topics_out_of_sync",
    "linn_cluster_topics_few_replicas",
    "linn_cluster_follower_lag_seconds",
    "linn_cluster_clock_ahead_seconds",
    "linn_cluster_store_latency_seconds",
    "linn_cluster_view_age_seconds",
    "linn_cluster_is_registered",
    "linn_cluster_is_controller",
}
"""Metrics of what may go wrong in a cluster: each has an alert."""


def family_of(name: str) -> str:
    return name.removesuffix("_bucket") if name.removesuffix("_bucket") in KNOWN else name


def metrics_of(query: str) -> list[str]:
    return re.findall(r"\blinn_\w+", query)


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_each_alert_asks_for_metrics_and_labels_that_there_are(rule: dict[str, Any]) -> None:
    query, names = rule["expr"], metrics_of(rule["expr"])
    assert names
    for name in names:
        metric = KNOWN[family_of(name)]
        assert (family_of(name) != name) == (metric.kind == "histogram"), "of a histogram, its buckets are asked for"
        counts = metric.kind != "gauge"
        is_over_time = any(f"{function}({name}" in query for function in OVER_TIME)
        assert counts == is_over_time, "increases are of counters and buckets, and of nothing else"
        labels = {*metric.labels, *SCRAPED} | ({"le"} if family_of(name) != name else set())
        selected = {
            label for text in re.findall(name + r"\{([^}]*)\}", query) for label in re.findall(r"(\w+)\s*=", text)
        }
        assert selected <= labels, name
        grouped = {label for text in re.findall(r"\bby \(([^)]*)\)", query) for label in re.findall(r"\w+", text)}
        assert grouped <= labels | {"node"}, name
        shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert shown <= (grouped or labels), "a label that the query does not keep"


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_each_alert_is_whole(rule: dict[str, Any]) -> None:
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Linn[A-Za-z]+", rule["alert"])
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"].endswith(".")
    assert DURATION.fullmatch(rule.get("for", "1m"))
    query = rule["expr"]
    assert query.count("(") == query.count(")")
    assert query.count("[") == query.count("]")
    assert re.search(r"(==|!=|>=|>|<) ", query), "an alert without a comparison always fires"


def test_names_are_unique_and_each_trouble_of_a_cluster_has_an_alert() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    assert len({group["name"] for group in GROUPS}) == len(GROUPS)
    asked = {name for rule in RULES for name in metrics_of(rule["expr"])}
    assert asked >= CLUSTER_TROUBLES
