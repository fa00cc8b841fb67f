"""A predicate's text: parsed, written, asked about messages, explained, and found by an exchange's index.

Input: the text in UTF-8; other bytes become halves of surrogate pairs, which JSON can carry.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuzz_budget import said, within_budget

from linn.core.errors.tree import BindingInvalid, PredicateInvalid
from linn.core.routing.exchange import Binding, Subject, Target
from linn.core.routing.predicate.predicate import Predicate
from linn.core.routing.predicate.tree import Affix, And, Comparison, LiteralValue, Membership, Node, Not, Or, fields_of
from linn.core.routing.predicate.truth import truth_of
from linn.core.routing.subject_field import SubjectField
from linn.plugins.content_exchange import linn_register_exchange

SUBJECTS_MAX = 6
PLAIN = (
    Subject("", {}),
    Subject("a.b", {"a": "b", "region": "eu", "n": 1, "x": float("nan"), "b": True}, b"k", {"h": b"\xff"}, 10),
)
ERROR_CHARACTERS_MAX = 1_000
"""Longest error: 60 characters of the text, each written as an escape of up to 10, and the problem."""


def fuzz_one(data: bytes) -> None:
    """Any text is a predicate or an error of one line; a predicate is the same in every way of asking it."""
    text = data.decode("utf-8", "surrogateescape")
    with within_budget(len(data)):
        predicate = parsed(text)
        if isinstance(predicate, str):
            assert len(predicate) < ERROR_CHARACTERS_MAX
            return
        again = Predicate.parse(str(predicate)) if len(str(predicate)) <= 4096 else predicate
        assert repr(again.tree) == repr(predicate.tree)
        assert (again, hash(again)) == (predicate, hash(predicate))
        for subject in (*PLAIN, *near(predicate.tree)):
            check_truth(predicate, subject)


def parsed(text: str) -> Predicate | str:
    """The predicate, or what is wrong with it."""
    try:
        return Predicate.parse(text)
    except PredicateInvalid as error:
        return said(error)


def literals_of(node: Node) -> Iterator[LiteralValue]:
    match node:
        case Comparison(_, _, value):
            yield value
        case Membership(_, values):
            yield from values
        case Affix(_, _, text):
            yield text + "-" + text
            yield text
        case Not(operand):
            yield from literals_of(operand)
        case And(operands) | Or(operands):
            for operand in operands:
                yield from literals_of(operand)


def near(node: Node) -> Iterator[Subject]:
    """Messages whose fields hold what the predicate asks for, though not always where it asks."""
    fields, literals = list(fields_of(node)), [*literals_of(node)] or ["x"]
    for turn in range(min(SUBJECTS_MAX, len(literals))):
        yield subject_of({field: literals[(turn + place) % len(literals)] for place, field in enumerate(fields)})


def subject_of(values: dict[SubjectField, LiteralValue]) -> Subject:
    def of(kind: str) -> dict[str, LiteralValue]:
        return {field.name: value for field, value in values.items() if field.kind == kind}

    headers = {name: str(value).encode() for name, value in of("header").items()}
    size = of("size").get("", 0)
    key = of("key").get("")
    return Subject(
        str(of("routing_key").get("", "")),
        of("label"),
        None if key is None else str(key).encode(),
        headers,
        size if type(size) is int else 0,
    )


def check_truth(predicate: Predicate, subject: Subject) -> None:
    """Asked, denied, explained and looked up in an index, it says the same."""
    truth = truth_of(predicate.tree)(subject)
    assert predicate.matches(subject) is (truth is True)
    assert truth_of(Not(predicate.tree))(subject) is (None if truth is None else not truth)
    explanation = predicate.explain(subject)
    assert explanation.truth is truth
    assert [*explanation.decisive()]
    demands = predicate.demands()
    if truth is True and demands is not None:
        assert any(field.reader()(subject) == field.as_read(value) for field, value in demands)
    kind = linn_register_exchange()
    exchange = kind.make("e", kind.settings())
    binding = Binding(Target("t"), "", {"when": str(predicate)})
    try:
        exchange.bind(binding)
    except BindingInvalid:
        assert len(str(predicate)) > 4096, "written out, a text may become longer than texts may be"
        return
    assert (binding in exchange.match(subject)) is (truth is True)
