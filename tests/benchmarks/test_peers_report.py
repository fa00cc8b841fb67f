"""The page of linn and its peers, and what other pages say of it, is what the raw data says."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.peers.chart import OVERVIEW, overview, rate_text, whole
from benchmarks.peers.peer import WORKS, Durability, Facts, Work
from benchmarks.peers.report import BLOCKS, JSON, ROOT, comparisons, documented, page, standing, summary
from benchmarks.peers.result import Result, Sample, WarmUp, read, write

SINGLE: Work = "publish one at a time"
BULK: Work = "publish to a queue in bulk"
TOOL: Work = "publish to a stream, by load tool"


def facts(name: str, *durabilities: Durability) -> Facts:
    calls = dict.fromkeys(WORKS, f"`{name}.do()`")
    if name == "Faster":
        del calls[BULK]
    settings = dict.fromkeys(durabilities, "a setting")
    return Facts(name, "a client", settings, calls, {BULK: "records go one by one"}, ("A note.",))


def samples(system: str, work: Work, durability: Durability, *rates: float, record_bytes: int = 128) -> list[Sample]:
    times = (100.0, 20_000.0) if work == SINGLE else (None, None)
    return [
        Sample(system, work, durability, record_bytes, number, int(rate), 1.0, rate, 0.5, 0.25, *times)
        for number, rate in enumerate(rates, 1)
    ]


def result() -> Result:
    return Result(
        facts=[facts("linn", "page cache", "fsync"), facts("Faster", "page cache"), facts("Gone", "page cache")],
        versions={"linn": "1.0", "Faster": "2.0"},
        samples=[
            *samples("linn", SINGLE, "page cache", 900, 1000, 4000),
            *samples("Faster", SINGLE, "page cache", 1800, 2500, 4400),
            *samples("linn", SINGLE, "fsync", 10, 10, 10),
            *samples("linn", BULK, "page cache", 50, 60, 70),
            *samples("linn", TOOL, "page cache", 5, 6, 7, record_bytes=1024),
            *samples("Faster", TOOL, "page cache", 4, 7, 5, record_bytes=1024),
        ],
        warm_ups=[WarmUp("Faster", "page cache", SINGLE, [1.0, 2.0, 4.0], is_still=False)],
        idle_cores={"page cache": 0.05},
        missing={"Gone": "it ended", "absent": "apt-get install absent"},
        measured_at="2026-01-02T03:04:05+00:00",
        minutes=10.0,
        plan={"rounds": 3, "seconds": 0.7, "stock_bytes_max": 256 << 20},
        machine={"cpus": 2, "memory_bytes": 8 << 30, "system": "Linux", "python": "3.11", "load_average": [0.1, 0, 0]},
    )


def rows_of(text: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    lines = text.partition(f"### {heading}\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_row_has_the_median_rate_the_median_of_the_ratios_and_their_spread() -> None:
    linn, faster, *_ = rows_of(page(result()), "Publish one at a time: 128 bytes")
    times = ["100 us", "20.0 ms"]
    assert linn == ["linn", "page cache", "1,000", "1.00", "", "500.00 us (0.50)", "250.00 us (0.25)", *times]
    assert faster[:5] == ["Faster", "page cache", "**2,500**", "2.00", "1.10 to 2.50"]


def test_what_a_system_does_not_offer_is_said_with_the_reason() -> None:
    text = page(result())
    assert [row[:3] for row in rows_of(text, "Publish to a queue in bulk: 128 bytes")] == [
        ["linn", "page cache", "60"],
        ["Faster", "page cache", "not offered"],
    ]
    assert "- fsync: not offered" in text
    assert f"| {BULK} | not offered: records go one by one |" in text


def test_a_system_is_called_faster_only_where_it_was_in_every_round() -> None:
    single, tool = comparisons(result())
    assert (single.work, single.ahead, single.is_linn_first) == (SINGLE, ["Faster"], False)
    assert (tool.work, tool.ahead, tool.is_linn_first) == (TOOL, [], False)
    assert "| **Faster**: 2.0 x (1.10 to 2.5) linn |" in summary(result())
    assert "| no order: Faster 0.80 x (0.71 to 1.17) linn |" in summary(result())


def test_the_claim_links_to_what_linn_loses_and_says_what_is_not_settled() -> None:
    text = " ".join(standing(result(), "peers.md").split())
    assert "fastest in every round of 0 of 2 comparisons" in text
    assert "In 1 the order changed from round to round" in text
    assert "In 1 [another was faster in every round](peers.md#where-another-was-faster)." in text
    assert text.startswith("![Rates beside Faster](peers.svg)")
    assert "Gone" not in text
    (behind,) = re.findall(r"## Where another was faster\n\n.*?\n\n(.*?)\n\n", page(result()), re.DOTALL)
    assert behind == "- publish one at a time: Faster (page cache, 128 bytes)"


def test_where_linn_is_ahead_the_best_of_the_others_is_named() -> None:
    ahead = Result(
        facts=result().facts,
        versions={"linn": "1", "Faster": "1", "Gone": "1"},
        samples=[
            *samples("linn", SINGLE, "fsync", 100, 100),
            *samples("Faster", SINGLE, "fsync", 50, 25),
            *samples("Gone", SINGLE, "fsync", 10, 10),
        ],
        machine=result().machine,
    )
    (found,) = comparisons(ahead)
    assert found.is_linn_first
    assert "| **linn**: 2.7 x (2.0 to 4.0) Faster |" in summary(ahead), "the fastest is bold, whoever it is"
    assert "fastest in every round of 1 of 1 comparisons." in standing(ahead, "peers.md")
    assert "#where-another-was-faster" not in standing(ahead, "peers.md")
    assert "Where another was faster" not in page(ahead)


def test_a_chart_has_a_panel_per_work_and_the_fastest_first() -> None:
    texts = svg_texts(whole(result(), 128))
    first = texts.index(f"{SINGLE} (page cache)")
    assert texts[first + 1 : first + 5] == ["Faster", "2,500", "linn", "1,000"]
    assert f"{BULK} (page cache)" in texts
    assert f"{TOOL} (page cache)" not in texts, "there are no records of that size"
    assert f"{TOOL} (page cache)" in svg_texts(whole(result(), 1024))
    assert "Gone" not in texts


def test_the_chart_of_the_front_pages_shows_every_system_that_was_measured() -> None:
    measured = read(ROOT / JSON)
    texts = svg_texts(overview(measured))
    assert {facts.name for facts in measured.facts} <= {*texts}
    assert [text for text in texts if text in WORKS] == [*OVERVIEW]


def svg_texts(picture: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize(("rate", "text"), [(999.6, "1,000"), (9_513, "9,513"), (24_684, "24.7 k"), (4.17e6, "4.17 M")])
def test_rates_have_three_digits(rate: float, text: str) -> None:
    assert rate_text(rate) == text


def test_a_load_tools_processor_time_is_not_told_as_cores() -> None:
    rows = rows_of(page(result()), "Publish to a stream, by load tool: 1,024 bytes")
    assert [row[0] for row in rows] == ["linn", "Faster"]
    assert all("(" not in cell for row in rows for cell in row)


def test_systems_that_were_not_measured_are_on_the_page_with_the_reason() -> None:
    text = page(result())
    assert "### Gone: not measured\n\n- Not measured: it ended\n" in text
    assert "- absent: apt-get install absent\n" in text


def test_a_warm_up_that_did_not_come_to_an_end_is_told() -> None:
    assert "1 of 1 did not come to stand still, of Faster (page cache)" in " ".join(page(result()).split())


def test_every_table_of_the_page_is_whole() -> None:
    width = 0
    for line in page(result()).splitlines():
        if line.startswith("|"):
            width = width or line.count("|")
            assert line.count("|") == width
        else:
            width = 0


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    write(path, result())
    assert read(path) == result()
    assert page(read(path)) == page(result())


def test_without_figures_nothing_is_claimed() -> None:
    for text in (page(Result()), standing(Result(), "peers.md"), summary(Result())):
        assert "Nothing was measured yet" in text
        assert "comparisons" not in text


def test_the_documentation_says_what_its_raw_data_says() -> None:
    for path, text in documented(read(ROOT / JSON)).items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, "python -m benchmarks.peers.report writes it anew"


def test_each_page_that_claims_something_has_its_place_for_it() -> None:
    for name in BLOCKS:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert text.count("<!-- peers: ") == text.count("<!-- peers end -->") >= 1, name
