"""Parsing of predicates and their text again, refusals with their positions, and no input that makes the parser slow or
raise.
"""

from __future__ import annotations

import pytest
from any_predicates import TREES, exact
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stopwatch import at_most

from linn.core.errors.tree import BindingInvalid, PredicateInvalid
from linn.core.routing.predicate.parser import (
    CHARACTERS_MAX,
    DEPTH_MAX,
    LIST_ITEMS_MAX,
    NODES_MAX,
    parse_field,
    parse_tree,
)
from linn.core.routing.predicate.predicate import Predicate
from linn.core.routing.predicate.tree import Node
from linn.core.routing.subject_field import SubjectField

PARSE_S_MAX = 2.0
"""A generous bound: the longest text takes 10 ms."""


@settings(max_examples=200, deadline=None)
@given(TREES)
def test_a_tree_round_trips_through_its_text(tree: Node) -> None:
    assert exact(parse_tree(str(tree))) == exact(tree)


WORDS = "label. label header key routing_key size not and or in exists starts_with ends_with true label.a is like"
SYMBOLS = "( ) [ ] , . = != < <= > >= == <> ! && 1 -2.5e3 1e999 99999999999999999999"
QUOTED = ('"a"', '"\\u00e9"', 'header["x y"]', '"', "'", "\\", "\n", "\x00", "\u00e9")
PIECES = st.sampled_from([*WORDS.split(), *SYMBOLS.split(), *QUOTED])


def refusal(text: str) -> str | None:
    """The error for a text; None if it is a predicate."""
    try:
        parse_tree(text)
    except PredicateInvalid as error:
        return str(error)
    return None


@settings(max_examples=800, deadline=None)
@given(st.text(max_size=60) | st.lists(PIECES, max_size=14).map(" ".join) | st.lists(PIECES, max_size=14).map("".join))
@example("\ud800")
@example('label.a = "\ud800"')
@example('label["\ud800"] exists')
@example("label.a = \U0010ffff")
def test_every_text_is_a_predicate_or_an_error_of_one_line(text: str) -> None:
    said = refusal(text)
    if said is None:
        assert Predicate.parse(str(Predicate.parse(text))) == Predicate.parse(text)
    else:
        assert said.isprintable(), "so it is one line"
        assert len(said) < 400


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_a_predicate_or_an_error(data: bytes) -> None:
    said = refusal(data.decode("utf-8", "surrogateescape"))
    assert said is None or said.isprintable()


@settings(max_examples=200, deadline=None)
@given(TREES, st.data())
def test_a_predicate_with_a_character_changed_is_a_predicate_or_an_error(tree: Node, data: st.DataObject) -> None:
    text = str(tree)
    at = data.draw(st.integers(0, len(text)))
    changed = text[:at] + data.draw(st.sampled_from(["", "(", '"', "\\", " ", "a", ".", "-", "\x00"])) + text[at + 1 :]
    said = refusal(changed)
    assert said is None or said.isprintable()


LONG = CHARACTERS_MAX


@pytest.mark.measured
@pytest.mark.parametrize(
    "text",
    [
        "(" * LONG,
        "not " * (LONG // 4),
        '"' * LONG,
        "a" * LONG,
        "label." + "a-" * ((LONG - 6) // 2),
        "a." * (LONG // 2),
        "1" * LONG,
        "size=" + "9" * (LONG - 5),
        "1e" + "9" * (LONG - 2),
        "1." * (LONG // 2),
        "=" * LONG,
        " " * LONG,
        'key="' + "\\u00e9" * ((LONG - 6) // 6) + '"',
        "key in (" + '"",' * ((LONG - 8) // 3),
        "size=1 or " * (LONG // 10),
        "\\" * LONG,
        "\n" * (LONG - 1) + "x",
        'size = "' + "a" * (LONG - 9) + '"',
        "header." + "a" * (LONG - 12) + " = 1",
    ],
)
def test_no_text_takes_long(text: str) -> None:
    assert len(text) <= LONG
    with at_most(cpu_s=PARSE_S_MAX):
        said = refusal(text)
    assert said is None or len(said) < 400


# --- limits ----------------------------------------------------------------------------------------------------------


def test_the_limit_on_characters_holds_exactly() -> None:
    text = "size = 1"
    parse_tree(text + " " * (CHARACTERS_MAX - len(text)))
    with pytest.raises(
        PredicateInvalid, match=f"at most {CHARACTERS_MAX} characters, this one has {CHARACTERS_MAX + 1}"
    ):
        parse_tree(text + " " * (CHARACTERS_MAX - len(text) + 1))
    with pytest.raises(PredicateInvalid, match="at most"):
        parse_field("label." + "a" * CHARACTERS_MAX)


@pytest.mark.parametrize("nest", [lambda n: "(" * n + "true" + ")" * n, lambda n: "not " * n + "true"])
def test_the_limit_on_depth_holds_exactly(nest) -> None:  # type: ignore[no-untyped-def]
    parse_tree(nest(DEPTH_MAX))
    with pytest.raises(PredicateInvalid, match="deep"):
        parse_tree(nest(DEPTH_MAX + 1))
    # It is nesting that counts, not their number.
    parse_tree(" or ".join([nest(DEPTH_MAX // 2)] * 8))


def test_the_limit_on_nodes_holds_exactly() -> None:
    # The chain itself is one.
    parse_tree(" or ".join(["true"] * (NODES_MAX - 1)))
    with pytest.raises(PredicateInvalid, match="more than 256 tests and connectives"):
        parse_tree(" or ".join(["true"] * NODES_MAX))


def test_the_limit_on_lists_holds_exactly() -> None:
    parse_tree(f"size in ({','.join(['1'] * LIST_ITEMS_MAX)})")
    with pytest.raises(PredicateInvalid, match="more than 256 values in a list"):
        parse_tree(f"size in ({','.join(['1'] * (LIST_ITEMS_MAX + 1))})")


def test_numbers_are_those_that_labels_can_carry() -> None:
    for text in ("-9223372036854775808", "9223372036854775807", "1.7976931348623157e308"):
        parse_tree(f"label.a = {text}")
    for text in ("-9223372036854775809", "9223372036854775808"):
        with pytest.raises(PredicateInvalid, match="does not fit into 64 bits"):
            parse_tree(f"label.a = {text}")
    with pytest.raises(PredicateInvalid, match="too large"):
        parse_tree("label.a = 1e309")


# --- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("LABEL.a = 1", None),
        ("label.a = 1 AND Not label.b Exists", "label.a = 1 and not label.b exists"),
        ("labels.a = 1 or headers['b'] exists", "label.a = 1 or header.b exists"),
        ('label["a"] = 1', "label.a = 1"),
        ("key = 'it''s'", None),
        (r"key = 'it\'s \"so\" \\ \n\r\t\u00e9\U0001f600'", 'key = "it\'s \\"so\\" \\\\ \\n\\r\\té\U0001f600"'),
        ("label.a not in (1,2)", "not label.a in (1, 2)"),
        ('key not starts_with "a"', 'not key starts_with "a"'),
        ("key not exists", "not key exists"),
        ("label.a = +1", "label.a = 1"),
        ("label.a=1and label.b=2", None),
        ("  label.a\r\n =\t1 ", "label.a = 1"),
        ("label.and = 1", "label.and = 1"),
        ("label.a=TRUE", "label.a = true"),
        ("((label.a = 1))", "label.a = 1"),
        ("(label.a = 1 or true) and false", "(label.a = 1 or true) and false"),
        ("label.a = 1 or true and false", "label.a = 1 or true and false"),
    ],
)
def test_spellings(text: str, same: str | None) -> None:
    if same is None:
        with pytest.raises(PredicateInvalid):
            parse_tree(text)
    else:
        assert str(parse_tree(text)) == same


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ('labl.a = "x"', 1, 'unknown field "labl.a"; did you mean "label"?'),
        ('region = "eu"', 1, 'unknown field "region"; known: label.NAME, header.NAME, key, routing_key, size'),
        ("key.a = 1", 1, '"key" has no parts'),
        ("label = 1", 7, 'expected the name, as in label.NAME or label["any name"], not "="'),
        ("label.a = and size > 3", 11, 'expected text, a number, true or false, not "and"'),
        ("label.a = eu", 11, 'not "eu"; text stands in quotes'),
        ("label.a", 8, "expected a comparison, in, starts_with, ends_with or exists, not the end"),
        ("label.a == 1", 9, 'equality is written "="'),
        ("label.a <> 1", 9, 'inequality is written "!="'),
        ("label.a is null", 9, 'asked by "exists"'),
        ("label.a LIKE 'x%'", 9, "starts_with or ends_with"),
        ("label.a between 1 and 2", 9, "use >= and <="),
        ("label.a exist", 9, 'unknown operator "exist"; did you mean "exists"?'),
        ("label.a not not in (1)", 13, 'expected in, starts_with, ends_with or exists, not "not"'),
        ("label.a or in (1)", 9, 'expected a comparison, in, starts_with, ends_with or exists, not "or"'),
        ("label.a not nt (1)", 13, 'expected in, starts_with, ends_with or exists, not "nt"'),
        ("label.a not inn (1)", 13, 'unknown operator "inn"; did you mean "in"?'),
        ("label.a not = 1", 13, 'expected in, starts_with, ends_with or exists, not "="'),
        ("true && false", 6, 'write "and"'),
        ("!true", 1, 'negation is written "not"'),
        ("size = 'x'", 8, "size is a number: it can't be compared with 'x'"),
        ("header.a = 3", 12, "header.a is text: it can't be compared with 3; numbers are carried by labels"),
        ("key = true", 7, "key is text: it can't be compared with true"),
        ("label.a < true", 11, 'have no order: "<" means nothing'),
        ("label.a in (1, 'x')", 16, "the values of a list are all text, all numbers, or all true and false"),
        ("label.a in ()", 13, 'not ")"'),
        ("label.a in (1", 14, 'expected "," or ")", not the end'),
        ("size starts_with '1'", 6, "size is a number: starts_with means nothing"),
        ("label.a starts_with 1", 21, "expected text in quotes, not 1"),
        ("5 < size", 1, "a field stands on the left of an operator, a value on the right"),
        ("(true", 6, 'expected ")", not the end'),
        ("true true", 6, 'expected "and", "or" or the end, not "true"'),
        ("key = 'x", 7, "the text that begins here has no closing '"),
        (r"key = '\q'", 8, r"unknown escape"),
        (r"key = '\ud800'", 8, "4 hexadecimal digits name a character"),
        (r"key = '\U00110000'", 8, "8 hexadecimal digits name a character"),
        ("key = 'a\nb'", 9, "written as an escape"),
        ("label.größe = 1", 1, "a name with other characters stands in brackets"),
        ("size = 12kb", 8, "not a number"),
        ("size = 1 ; drop", 10, "has no meaning here"),
    ],
)
def test_an_error_shows_its_place_and_cause(text: str, column: int, problem: str) -> None:
    with pytest.raises(PredicateInvalid) as caught:
        parse_tree(text)
    assert isinstance(caught.value, BindingInvalid)
    said = caught.value.text
    assert problem in said
    assert said.startswith("predicate, ")
    assert f"column {column}: " in said
    line = text.splitlines()[0]
    assert said.endswith(f" in: {line[: column - 1]}^{line[column - 1 :]}")


def test_an_error_in_a_long_text_shows_the_part_around_it_and_its_line() -> None:
    text = "label.a = 1\nor " + "label.b = 2 or " * 20 + "label.c ?\nor true"
    with pytest.raises(PredicateInvalid) as caught:
        parse_tree(text)
    assert caught.value.text.startswith("predicate, line 2, column 312: ")
    assert "label.c ^?" in caught.value.text
    assert len(caught.value.text) < 200


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("label.a", SubjectField("label", "a")),
        ('headers["a b"]', SubjectField("header", "a b")),
        ("key", SubjectField("key")),
        (" routing_key ", SubjectField("routing_key")),
        ("label", None),
        ("label.a = 1", None),
        ("", None),
        ("colour", None),
        ("'a'", None),
    ],
)
def test_a_field_alone(text: str, field: SubjectField | None) -> None:
    if field is None:
        with pytest.raises(PredicateInvalid):
            parse_field(text)
    else:
        assert parse_field(text) == field


def test_an_empty_predicate_says_how_to_write_one_that_is_always_true() -> None:
    for text in ("", " \n"):
        with pytest.raises(PredicateInvalid, match="write true"):
            parse_tree(text)
