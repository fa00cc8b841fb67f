"""Truth of predicates: compiled ones against a slow reading of the language, and the laws of its logic."""

from __future__ import annotations

import math

import pytest
from any_predicates import SUBJECTS, TREES, naive_truth
from hypothesis import given, settings

from linn.core.routing.exchange import Subject
from linn.core.routing.explanation import Explanation
from linn.core.routing.predicate.parser import parse_tree
from linn.core.routing.predicate.predicate import Predicate
from linn.core.routing.predicate.tree import And, Comparison, Node, Not, Or, demands_of, fields_of
from linn.core.routing.predicate.truth import truth_of

MESSAGE = Subject(
    "orders.eu.new",
    {"region": "eu", "urgent": True, "pages": 3, "weight": 2.5, "nan": math.nan, "code": "404"},
    key=b"customer-7",
    headers={"kind": "größe".encode(), "raw": b"\xff\xfe"},
    size=100,
)


@settings(max_examples=400, deadline=None)
@given(TREES, SUBJECTS)
def test_a_predicate_is_true_for_the_pages_examples(tree: Node, subject: Subject) -> None:
    assert truth_of(tree)(subject) is naive_truth(tree, subject)
    assert Predicate(tree).matches(subject) is (naive_truth(tree, subject) is True)


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ('label.region = "eu"', True),
        ('label.region = "EU"', False),
        ('label.region < "f"', True),
        ('labels["region"] in ("us", "eu")', True),
        ('label.region not in ("us", "eu")', False),
        ("label.pages = 3.0", True),
        ("label.pages >= 3 and label.weight < 2.6", True),
        ("label.urgent = true", True),
        ("label.urgent = false", False),
        ("label.urgent != false", True),
        ('routing_key starts_with "orders."', True),
        ('routing_key ends_with ".new" and not routing_key ends_with ".old"', True),
        ('key = "customer-7"', True),
        ('key starts_with "customer-"', True),
        ('header.kind = "größe"', True),
        ('header.raw = "x"', False),
        ("size >= 100 and size < 101", True),
        ("header.kind exists and not header.none exists", True),
        ("true and not false", True),
        # What is not there, or can't be compared, is unknown.
        ("label.none = 1", None),
        ("label.none != 1", None),
        ("label.none in (1)", None),
        ('label.none starts_with ""', None),
        ("label.none exists", False),
        ("label.urgent = 1", None),
        ("label.pages = true", None),
        ("label.code = 404", None),
        ("label.code != 404", None),
        ("label.nan = 0", None),
        ("label.nan != 0", None),
        ("label.nan in (0)", None),
        ("label.nan exists", True),
        # What unknown makes of the rest.
        ("not label.none = 1", None),
        ("label.none = 1 or label.pages = 3", True),
        ("label.none = 1 and label.pages = 3", None),
        ("label.none = 1 and label.pages = 4", False),
        ("label.none = 1 or label.pages = 4", None),
        ("not (label.none = 1 and label.pages = 4)", True),
    ],
)
def test_examples(text: str, truth: bool | None) -> None:
    assert truth_of(parse_tree(text))(MESSAGE) is truth


OPPOSITES = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


@settings(max_examples=200, deadline=None)
@given(TREES, TREES, SUBJECTS)
def test_logic_has_its_laws(left: Node, right: Node, subject: Subject) -> None:
    def truth(node: Node) -> bool | None:
        return truth_of(node)(subject)

    assert truth(Not(Not(left))) is truth(left)
    assert truth(Not(And((left, right)))) is truth(Or((Not(left), Not(right))))
    assert truth(And((left, right))) is truth(And((right, left)))
    if isinstance(left, Comparison):
        assert truth(Not(left)) is truth(Comparison(left.field, OPPOSITES[left.operator], left.value))  # type: ignore[arg-type]


@settings(max_examples=400, deadline=None)
@given(TREES, SUBJECTS)
def test_a_matching_message_has_one_of_the_demanded_pairs(tree: Node, subject: Subject) -> None:
    demands = demands_of(tree)
    if demands is not None and Predicate(tree).matches(subject):
        assert any(naive_truth(Comparison(field, "=", value), subject) for field, value in demands)


def test_demands_are_found_if_there_are_any() -> None:
    def demands(text: str) -> list[str] | None:
        found = Predicate.parse(text).demands()
        return None if found is None else [f"{field}={value}" for field, value in found]

    assert demands('label.a = 1 and size > 3 and key = "x"') == ["label.a=1"]
    assert demands('label.a in (1, 2) and key = "x"') == ["key=x"]
    assert demands("label.a in (1, 2) or label.b = true") == ["label.a=1", "label.a=2", "label.b=True"]
    assert demands("label.a = 1 or size > 3") is None
    assert demands("not label.a = 1") is None
    assert demands("false and size > 3") == []
    assert demands("true") is None


def test_a_predicate_requests_only_the_fields_that_it_reads() -> None:
    text = 'label.a = 1 or routing_key = "x" or (size > 1 and header["a b"] exists) or not key exists or header.c = "d"'
    assert Predicate.parse(text).fields() == {"size", "header:a b", "key", "header:c"}
    assert Predicate.parse('label.a = 1 and routing_key = "x"').fields() == frozenset()
    assert [str(field) for field in fields_of(parse_tree("label.b = 1 or label.a = 1 or label.b = 2"))] == [
        "label.b",
        "label.a",
    ]


# --- explanations ----------------------------------------------------------------------------------------------------


def leaves(explanation: Explanation) -> list[Explanation]:
    return [leaf for part in explanation.parts for leaf in leaves(part)] if explanation.parts else [explanation]


@settings(max_examples=150, deadline=None)
@given(TREES, SUBJECTS)
def test_an_explanation_is_true_in_every_part(tree: Node, subject: Subject) -> None:
    explained = Predicate(tree).explain(subject)

    def check(explanation: Explanation) -> None:
        assert naive_truth(parse_tree(explanation.text), subject) is explanation.truth
        assert bool(explanation.because) is not bool(explanation.parts)
        for part in explanation.parts:
            check(part)

    check(explained)
    assert explained.text == str(tree)
    assert set(map(id, explained.decisive())) <= set(map(id, leaves(explained)))
    assert list(explained.decisive())


@pytest.mark.parametrize(
    ("text", "becauses"),
    [
        ('label.region = "us" and label.pages = 3', ['label.region is "eu"']),
        ("label.none = 1 and label.pages = 3", ["there is no label.none"]),
        ('label.region = "us" or label.pages = 3', ["label.pages is 3"]),
        (
            'label.region = "us" or label.code = 404',
            ['label.region is "eu"', 'label.code is "404", which can\'t be compared with 404'],
        ),
        ("label.code = 404", ['label.code is "404", which can\'t be compared with 404']),
        ("not label.urgent = true", ["label.urgent is true"]),
        ('header.raw = "x"', [r"header.raw is b'\xff\xfe'"]),
        ("key exists", ['key is "customer-7"']),
    ],
)
def test_a_miss_names_its_cause(text: str, becauses: list[str]) -> None:
    assert [leaf.because for leaf in Predicate.parse(text).explain(MESSAGE).decisive()] == becauses


def test_long_values_are_shortened_in_an_explanation() -> None:
    long = MESSAGE._replace(labels={"a": "x" * 5_000}, key=b"\xff" * 5_000)
    for text in ("label.a exists", "key exists"):
        (leaf,) = Predicate.parse(text).explain(long).decisive()
        assert len(leaf.because) < 120


def test_equal_text_makes_equal_predicates() -> None:
    one, same, other = (Predicate.parse(text) for text in ("label.a=1", "label.a  =  1", "label.a = 2"))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert str(one) == str(same) == "label.a = 1"
