"""The registry as such: names, labels, histograms, and the page that documents them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from metric_samples import samples
from raw_client import ALWAYS, broker_on, connected, served, simulated
from reference_pages.metrics import page

from linn.core.broker.broker import Broker
from linn.core.loop.histogram import Histogram
from linn.core.metrics.cluster import CLUSTER_METRICS
from linn.core.metrics.metric import Metric
from linn.core.metrics.registry import METRICS
from linn.core.plugins.manager import built_in
from linn.core.ports.service import ServiceMetric
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
OF_SERVICES = [metric for kind in built_in().services.values() for metric in kind.metrics]
DOCUMENTED: list[Metric | ServiceMetric] = [*METRICS, *OF_SERVICES]


def test_the_page_says_what_the_code_has() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "make it with: python tests/reference_pages metrics"


def test_every_metric_is_on_the_page_once() -> None:
    rows = re.findall(r"^\| `(linn_\w+)` \| (\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted((metric.name, metric.kind) for metric in DOCUMENTED)


@pytest.mark.parametrize("metric", DOCUMENTED, ids=lambda metric: metric.name)
def test_names_are_as_prometheus_wants_them(metric: Metric | ServiceMetric) -> None:
    assert re.fullmatch(r"linn_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert all(re.fullmatch(r"[a-z]+", label) for label in metric.labels)
    assert metric.help.endswith(".")
    measured = [unit for unit in ("ms", "kb", "mb", "percent") if f"_{unit}" in metric.name]
    assert measured == [], "base units only"


@simulated
async def test_every_sample_has_the_labels_of_its_metric(env: SimEnv) -> None:
    text = ALWAYS + '[topics.both]\nkind = "both"\n[topics.s]\nkind = "stream"\npartitions = 3\n'
    async with broker_on(env, text) as broker:
        client = await connected(env)
        await client.publish("both", ["a"])
        await client.call(m.Subscribe("s", group="g", credit=1))
        assert await client.code_of(await client.send(m.Publish("s"), [])) == "protocol.malformed"
        families = list(broker.metrics.collect())
        assert [family.metric for family in families] == list(METRICS)
        for metric, found in families:
            labels = [labels for labels, _ in found]
            assert len(set(labels)) == len(labels), metric.name
            assert all(len(each) == len(metric.labels) for each in labels), metric.name
            assert all(isinstance(each, Histogram) == (metric.kind == "histogram") for _, each in found), metric.name
        silent = [metric.name for metric, found in families if not found]
        assert silent == [
            "linn_plugin_failures_total",
            "linn_loop_held_total",
            "linn_listener_connections_failed_total",
            "linn_tls_certificate_left_days",
            *(metric.name for metric in CLUSTER_METRICS),
        ]


@served("[topics.t]\n")
async def test_metrics_can_be_chosen_by_the_beginning_of_their_names(env: SimEnv, broker: Broker) -> None:
    await connected(env)
    chosen = [family.metric.name for family in broker.metrics.collect(["linn_queue_", "linn_broker_info"])]
    assert chosen == [metric.name for metric in METRICS if metric.name.startswith(("linn_queue_", "linn_broker_info"))]
    assert samples(broker, "linn_connection_inflight_requests") != {}
    names = [family.metric.name for family in broker.metrics.collect(per_connection=False)]
    assert [name for name in names if name.startswith("linn_connection_")] == []


def test_a_histogram_counts_a_value_in_every_bucket_that_is_not_below_it() -> None:
    histogram = Histogram([0.1, 1.0])
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(seconds)
    assert list(histogram.cumulated()) == [(0.1, 2), (1.0, 3), (float("inf"), 4)]
    assert (histogram.count, histogram.sum) == (4, pytest.approx(7.65))
