"""The demo's output on a terminal and in a pipe."""

import io

from rich.console import Console

from linn.cli.demo.progress import Progress
from linn.cli.demo.view import LINE_INTERVAL_S, View, picture


def running() -> Progress:
    progress = Progress(1000)
    progress.phase = "publishing"
    progress.publishing.start()
    progress.publishing.done = 250
    progress.working.expected, progress.working.done = 40, 15
    progress.workers["worker 1"] = "working"
    progress.ledger.received("worker 1", [1, 2, 3], 2, 1.0)
    return progress


def test_the_picture_has_progress_depth_redeliveries_and_workers() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    console.print(picture(running()))
    assert isinstance(console.file, io.StringIO)
    text = " ".join(console.file.getvalue().split())
    for words in ("250 / 1,000", "queue depth 25", "redelivered 3", "worker 1 working 0 acked 3 in hand"):
        assert words in text


def test_the_act_with_spark_shows_its_pipelines_and_what_they_have_done() -> None:
    progress = running()
    progress.publishing.end()
    assert not any("Spark" in stretch.name for stretch in progress.stretches)
    progress.has_spark = True
    progress.to_parquet.start()
    progress.to_parquet.done, progress.to_parquet.expected = 600, 1_000
    progress.pipelines["departures"] = "running, lag 400"
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=False)
    console.print(picture(progress))
    text = " ".join(out.getvalue().split())
    assert "600 / 1,000" in text
    assert "pipeline departures running, lag 400" in text
    view = View(console, progress)
    view._told_at -= LINE_INTERVAL_S
    view.tick()
    assert "Spark: departures to Parquet: 600 of 1,000" in out.getvalue()
    assert "departures is running, lag 400" in out.getvalue()


def test_a_terminal_gets_the_picture_and_a_pipe_gets_lines() -> None:
    for is_terminal in (True, False):
        out = io.StringIO()
        view = View(Console(file=out, width=120, force_terminal=is_terminal), running())
        with view.shown():
            view.say("it began")
            # As if the interval had passed.
            view._told_at -= LINE_INTERVAL_S
            view.tick()
        text = out.getvalue()
        assert "it began" in text
        assert ("published through the exchange: 250 of 1,000" in text) is not is_terminal
        assert ("in hand" in text) is is_terminal
