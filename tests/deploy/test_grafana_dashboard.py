"""The dashboard for Grafana asks for nothing that a broker does not tell."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from linn.core.metrics.registry import METRICS
from linn.spark_plugin.service.plugin import METRICS as OF_SPARK
from linn.testing.process import BrokerProcess

ROOT = Path(__file__).parents[2]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"], target["legendFormat"]) for panel in PANELS for target in panel["targets"]]
COLUMNS = 24
SCRAPED = {"instance"}
"""Labels that Prometheus adds."""
LISTENERS = """
[listeners.native]
address = "127.0.0.1:0"
[listeners.watch]
protocol = "metrics"
address = "127.0.0.1:0"
[spark]
enabled = false
"""
TYPE = re.compile(r"^# TYPE (\S+) (counter|gauge|histogram)$", re.MULTILINE)
LABELS = {metric.name: set(metric.labels) for metric in (*METRICS, *OF_SPARK)}


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The kind of each metric that a broker exposes over HTTP."""
    with BrokerProcess(tmp_path_factory.mktemp("watched"), LISTENERS + "[topics.jobs]\n", listen=()) as broker:
        (url,) = [url for url in broker.urls if url.startswith("http://")]
        yield dict(TYPE.findall(httpx.get(f"{url}/metrics", timeout=300).text))


def metrics_of(query: str) -> list[str]:
    found: list[str] = re.findall(r"\blinn_\w+", query)
    return found


def labels_of(query: str) -> set[str]:
    """Labels that a query selects or groups by."""
    inside = re.findall(r"\{([^}]*)\}", query)
    groups = re.findall(r"\bby \(([^)]*)\)", query)
    selected = {name for text in inside for name in re.findall(r"(\w+)\s*(?:=|!)", text)}
    return selected | {name.strip() for text in groups for name in text.split(",")}


@pytest.mark.parametrize(("title", "query", "legend"), QUERIES)
def test_each_query_names_existing_metrics_and_labels(
    exposed: dict[str, str], title: str, query: str, legend: str
) -> None:
    names = metrics_of(query)
    assert names, title
    for name in names:
        family = name.removesuffix("_bucket")
        assert family in exposed, name
        assert (family != name) == (exposed[family] == "histogram"), "of a histogram, its buckets are asked for"
        counts = exposed[family] != "gauge"
        assert counts == (f"rate({name}{{" in query), "rates are of counters and buckets, and of nothing else"
        known = LABELS[family] | SCRAPED | ({"le"} if family != name else set())
        assert labels_of(query) <= known, name
        shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
        grouped = {label for text in re.findall(r"\bby \(([^)]*)\)", query) for label in re.findall(r"\w+", text)}
        assert shown <= (grouped if "sum" in query else known), "a label that the query does not keep"
        assert f"{name}{{instance=~" in query, "the choice of the broker has no effect"


def test_the_dashboards_variables_use_existing_metrics(exposed: dict[str, str]) -> None:
    datasource, instance = DASHBOARD["templating"]["list"]
    assert (datasource["name"], datasource["query"]) == ("datasource", "prometheus")
    metric, label = re.findall(r"label_values\((\w+), (\w+)\)", instance["query"]["query"])[0]
    assert (instance["name"], label) == ("instance", "instance")
    assert metric in exposed


def test_every_panel_is_whole_and_none_covers_another() -> None:
    panels = DASHBOARD["panels"]
    assert DASHBOARD["title"]
    assert DASHBOARD["uid"]
    assert isinstance(DASHBOARD["schemaVersion"], int)
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in PANELS:
        assert panel["title"], panel["id"]
        assert panel["description"].endswith("."), panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0
        places = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(place == {"type": "prometheus", "uid": "${datasource}"} for place in places)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS, panel["title"]
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
