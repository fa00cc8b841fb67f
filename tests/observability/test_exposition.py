"""The text that Prometheus reads, against its own parser, for any labels and numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from linn.core.loop.histogram import Histogram
from linn.core.metrics.metric import Metric, MetricKind
from linn.core.metrics.registry import Family
from linn.protocols.http.exposition import SAMPLES_AT_ONCE, exposed

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def metric(kind: MetricKind, *labels: str) -> Metric:
    return Metric("linn_x_total" if kind == "counter" else "linn_x", kind, labels, 'Help \\ "quoted"\n.', lambda _: ())


def parsed(family: Family) -> list[tuple[str, dict[str, str], float]]:
    text = b"".join(exposed(family)).decode()
    (found,) = text_string_to_metric_families(text)
    assert (found.type, found.documentation) == (family.metric.kind, family.metric.help)
    return [(sample.name, sample.labels, sample.value) for sample in found.samples]


@given(st.dictionaries(st.tuples(TEXT, TEXT), st.integers(0, 2**53), max_size=5))
def test_labels_and_numbers_arrive_as_they_are(samples: dict[tuple[str, ...], int]) -> None:
    for kind in ("counter", "gauge"):
        made = metric(kind, "topic", "group")
        found = parsed(Family(made, list(samples.items())))
        assert found == [
            (made.name, {"topic": topic, "group": group}, value) for (topic, group), value in samples.items()
        ]


def test_a_family_of_any_size_is_one_family() -> None:
    for count in (0, 1, SAMPLES_AT_ONCE, SAMPLES_AT_ONCE + 1, 5 * SAMPLES_AT_ONCE):
        family = Family(metric("gauge", "topic"), [((str(number),), number) for number in range(count)])
        assert [value for _, _, value in parsed(family)] == list(range(count))
        assert len(list(exposed(family))) == max(1, -(-count // SAMPLES_AT_ONCE))


def test_a_histogram_has_its_buckets() -> None:
    histogram = Histogram([0.001, 0.5])
    for seconds in (0.0001, 0.4, 9.0):
        histogram.observe(seconds)
    assert parsed(Family(metric("histogram", "storage"), [(("s",), histogram)])) == [
        ("linn_x_bucket", {"storage": "s", "le": "0.001"}, 1),
        ("linn_x_bucket", {"storage": "s", "le": "0.5"}, 2),
        ("linn_x_bucket", {"storage": "s", "le": "+Inf"}, 3),
        ("linn_x_count", {"storage": "s"}, 3),
        ("linn_x_sum", {"storage": "s"}, 9.4001),
    ]
