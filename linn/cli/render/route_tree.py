"""Output of `linn route explain`: a tree per exchange on the way, or the whole trace as JSON.

Separate from the command because it needs Rich.
"""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.tree import Tree

from linn.cli.render.console import console, print_json
from linn.cli.routing.route_map import RouteMap
from linn.cli.routing.route_trace import Evaluation, Step, Trace, trace_of
from linn.core.errors.texts import one_line
from linn.core.routing.exchange import Subject
from linn.core.routing.explanation import Explanation

_WORDS = {True: "[green]true[/]", False: "[red]false[/]", None: "[yellow]unknown[/]"}


def explain_route(routes: RouteMap, exchange: str, subject: Subject, *, misses_max: int, as_json: bool) -> None:
    """Print the topics that a message is routed to, and the reasons. Raises LinnError."""
    trace = trace_of(routes, exchange, subject, misses_max=misses_max)
    if as_json:
        print_json(_data(exchange, subject, trace))
        return
    for step in trace.steps:
        console().print(_tree(step))
    if trace.topics:
        console().print(f"It goes to [bold]{_plain(', '.join(trace.topics))}[/].", soft_wrap=True)
    else:
        console().print("It goes [bold]nowhere[/]: nothing stores it, and a mandatory publish comes back.")


def _data(exchange: str, subject: Subject, trace: Trace) -> dict[str, Any]:
    return {
        "exchange": exchange,
        "message": {
            "routing_key": subject.routing_key,
            "labels": dict(subject.labels),
            "key": None if subject.key is None else _text(subject.key),
            "headers": {name: _text(value) for name, value in subject.headers.items()},
            "size": subject.size,
        },
        "topics": list(trace.topics),
        "steps": [step.as_data() for step in trace.steps],
    }


def _plain(text: str) -> str:
    """Escape markup and control characters."""
    return escape(one_line(text))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _tree(step: Step) -> Tree:
    name = f"exchange {step.exchange}" if step.exchange else "the default exchange"
    tree = Tree(f"[bold]{_plain(name)}[/] ({_plain(step.kind)}), {_plain(step.reached)}")
    for evaluation in step.evaluations:
        _add_binding(tree, evaluation)
    if step.others:
        tree.add(f"[dim]and {step.others:,} more bindings that do not match: --misses shows more[/]")
    if not step.evaluations and not step.others:
        tree.add(
            "[dim]it has no bindings[/]" if step.exchange else "[dim]no topic has the name that the routing key says[/]"
        )
    if step.alternate is not None:
        tree.add(f"nothing matches, so it goes to the alternate, exchange [bold]{_plain(step.alternate)}[/]")
    return tree


def _add_binding(tree: Tree, evaluation: Evaluation) -> None:
    target, explanation = evaluation.binding.target, evaluation.explanation
    to = f"exchange {target.name}" if target.is_exchange else f"topic {target.name}"
    verdict = "[green]yes[/]" if evaluation.matched else "[red]no[/] "
    text = f"{verdict} [bold]{_plain(to)}[/]  {_plain(explanation.text)}"
    if explanation.because:
        tree.add(f"{text}: {_plain(explanation.because)}")
        return
    branch = tree.add(text)
    for part in explanation.parts:
        _add_part(branch, part)


def _add_part(tree: Tree, part: Explanation) -> None:
    because = f": {_plain(part.because)}" if part.because else ""
    branch = tree.add(f"{_WORDS[part.truth]} {_plain(part.text)}{because}")
    if not part.because:
        for inner in part.parts:
            _add_part(branch, inner)
