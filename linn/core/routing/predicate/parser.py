"""Parses a predicate's text into its tree, by recursive descent; refuses all errors that need no message.

    predicate   = conjunction { "or" conjunction }
    conjunction = negation { "and" negation }
    negation    = "not" negation | "(" predicate ")" | "true" | "false" | test
    test        = field ( ("=" | "!=" | "<" | "<=" | ">" | ">=") literal
                        | ["not"] "in" "(" literal { "," literal } ")"
                        | ["not"] ("starts_with" | "ends_with") text
                        | ["not"] "exists" )
    field       = ("label" | "header") ( "." name | "[" text "]" ) | "key" | "routing_key" | "size"

Laws: every text gives a tree or a `PredicateInvalid`, in time that grows with its length alone; the limits keep the
stack and the work of each evaluation small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from linn.core.errors.texts import nearest
from linn.core.errors.tree import PredicateInvalid
from linn.core.routing.predicate.tokens import Token, invalid, tokens_of
from linn.core.routing.predicate.tree import (
    Affix,
    AffixOperator,
    And,
    Comparison,
    Constant,
    LiteralValue,
    Membership,
    Node,
    Not,
    Operator,
    Or,
    Presence,
)
from linn.core.routing.subject_field import FieldKind, SubjectField

CHARACTERS_MAX = 4_096
"""Longest predicate: room for a list of 400 airports."""
DEPTH_MAX = 32
"""Deepest nesting of `(` and `not`: people don't read more, and the stack must not end."""
NODES_MAX = 256
"""Limit of tests, constants, `not`s and chains of `and` or `or`, which are evaluated for each distinct message."""
LIST_ITEMS_MAX = 256
"""Limit of the literals after one `in`."""

_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
_FIELDS: Mapping[str, FieldKind] = {
    "label": "label",
    "labels": "label",
    "header": "header",
    "headers": "header",
    "key": "key",
    "routing_key": "routing_key",
    "size": "size",
}
_NAMED = ("label", "header")
_OTHER_LANGUAGES = {
    "==": 'equality is written "="',
    "<>": 'inequality is written "!="',
    "!": 'negation is written "not"',
    "&&": 'write "and"',
    "||": 'write "or"',
    "like": 'there is no "like": use starts_with or ends_with',
    "is": 'there is no "is": whether a field is there is asked by "exists"',
    "between": 'there is no "between": use >= and <=',
    "contains": 'there is no "contains": use starts_with or ends_with',
}
_OPERATORS = ("in", "not", "starts_with", "ends_with", "exists")
_RESERVED = ("and", "or", "not", "in", "exists", "starts_with", "ends_with")


def parse_tree(text: str) -> Node:
    """Parse a predicate. Raises PredicateInvalid."""
    if len(text) > CHARACTERS_MAX:
        raise PredicateInvalid(f"a predicate has at most {CHARACTERS_MAX} characters, this one has {len(text)}")
    if not text.strip():
        raise PredicateInvalid("a predicate can't be empty; to match every message, write true")
    try:
        return _Parser(text).whole()
    except PredicateInvalid as error:
        raise PredicateInvalid(f"predicate, {error.text}") from None


def parse_field(text: str) -> SubjectField:
    """Parse a text that is a field and nothing else. Raises PredicateInvalid."""
    if len(text) > CHARACTERS_MAX:
        raise PredicateInvalid(f"a field has at most {CHARACTERS_MAX} characters, this one has {len(text)}")
    return _Parser(text).only_field()


class _Parser:
    """A parser for one text: one pass over its tokens."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens_of(text)
        self._at = 0
        self._token = self._tokens[0]
        self._depth = 0
        self._nodes = 0

    def whole(self) -> Node:
        node = self._disjunction()
        if not self._at_end():
            raise self._unexpected('"and", "or" or the end')
        return node

    def only_field(self) -> SubjectField:
        field = self._field()
        if not self._at_end():
            raise self._unexpected("nothing after the field")
        return field

    # --- tokens ---

    def _at_end(self) -> bool:
        return self._token.kind == "end"

    def _next(self) -> Token:
        """Return the current token and step to the next one; stays at the last."""
        token = self._token
        self._at = min(self._at + 1, len(self._tokens) - 1)
        self._token = self._tokens[self._at]
        return token

    def _accept(self, *words: str) -> Token | None:
        return self._next() if self._token.keyword in words else None

    def _expect(self, symbol: str) -> Token:
        token = self._accept(symbol)
        if token is None:
            raise self._unexpected(f'"{symbol}"')
        return token

    # --- problems ---

    def _invalid(self, token: Token, problem: str) -> PredicateInvalid:
        return invalid(self._text, token.at, problem)

    def _unexpected(self, wanted: str) -> PredicateInvalid:
        token = self._token
        hint = _OTHER_LANGUAGES.get(self._token.keyword)
        if hint is not None:
            return self._invalid(token, hint)
        return self._invalid(token, f"expected {wanted}, not {_named(token)}")

    def _made(self, node: Node, token: Token) -> Node:
        """Count a node. Raises PredicateInvalid if there are too many."""
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise self._invalid(token, f"more than {NODES_MAX} tests and connectives")
        return node

    # --- connectives ---

    def _disjunction(self) -> Node:
        token = self._token
        operands = [self._conjunction()]
        while self._accept("or"):
            operands.append(self._conjunction())
        return operands[0] if len(operands) == 1 else self._made(Or(tuple(operands)), token)

    def _conjunction(self) -> Node:
        token = self._token
        operands = [self._negation()]
        while self._accept("and"):
            operands.append(self._negation())
        return operands[0] if len(operands) == 1 else self._made(And(tuple(operands)), token)

    def _negation(self) -> Node:
        if self._token.keyword not in ("not", "("):
            constant = self._accept("true", "false")
            return self._made(Constant(constant.keyword == "true"), constant) if constant else self._test()
        token = self._next()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._invalid(token, f'"(" and "not" more than {DEPTH_MAX} deep')
        if token.text == "(":
            node = self._disjunction()
            self._expect(")")
        else:
            node = self._made(Not(self._negation()), token)
        self._depth -= 1
        return node

    # --- tests ---

    def _test(self) -> Node:
        start = self._token
        field = self._field()
        if self._token.keyword in _COMPARISONS:
            return self._made(self._comparison(field), start)
        negated = self._accept("not")
        match self._token.keyword:
            case "in":
                test: Node = self._membership(field)
            case "starts_with" | "ends_with":
                test = self._affix(field)
            case "exists":
                self._next()
                test = Presence(field)
            case _:
                raise self._no_operator(negated is not None)
        self._made(test, start)
        return self._made(Not(test), start) if negated else test

    def _comparison(self, field: SubjectField) -> Comparison:
        operator = self._next()
        token = self._token
        value = self._literal(field)
        if isinstance(value, bool) and operator.text not in ("=", "!="):
            raise self._invalid(token, f'true and false have no order: "{operator.text}" means nothing')
        return Comparison(field, cast(Operator, operator.text), value)

    def _membership(self, field: SubjectField) -> Membership:
        self._next()
        self._expect("(")
        values = [self._literal(field)]
        while self._accept(","):
            token = self._token
            values.append(self._literal(field))
            if _sort(values[-1]) != _sort(values[0]):
                raise self._invalid(token, "the values of a list are all text, all numbers, or all true and false")
            if len(values) > LIST_ITEMS_MAX:
                raise self._invalid(token, f"more than {LIST_ITEMS_MAX} values in a list")
        if self._token.keyword != ")":
            raise self._unexpected('"," or ")"')
        self._next()
        return Membership(field, tuple(values))

    def _affix(self, field: SubjectField) -> Affix:
        operator = self._next()
        if field.kind == "size":
            raise self._invalid(operator, f"size is a number: {operator.text} means nothing")
        token = self._token
        text = self._literal(field)
        if not isinstance(text, str):
            raise self._invalid(token, f"expected text in quotes, not {_named(token)}")
        return Affix(field, cast(AffixOperator, operator.keyword), text)

    def _no_operator(self, negated: bool) -> PredicateInvalid:
        token = self._token
        known = [each for each in _OPERATORS if not (negated and each == "not")]
        near = nearest(self._token.keyword, known) if token.kind == "word" else None
        if near is not None and self._token.keyword not in (*_OTHER_LANGUAGES, *_RESERVED):
            return self._invalid(token, f'unknown operator "{token.text[:40]}"; did you mean "{near}"?')
        if negated:
            return self._unexpected("in, starts_with, ends_with or exists")
        return self._unexpected("a comparison, in, starts_with, ends_with or exists")

    def _literal(self, field: SubjectField) -> LiteralValue:
        """Parse the literal at the current token; its type must suit the field."""
        token = self._token
        value: LiteralValue | None = token.value
        if self._token.keyword in ("true", "false"):
            value = self._token.keyword == "true"
        if value is None:
            raise self._no_literal(field)
        wanted = {"label": None, "size": "number"}.get(field.kind, "text")
        if wanted is not None and _sort(value) != wanted:
            advice = "; numbers are carried by labels" if field.kind == "header" else ""
            shown = f"{str(field)[:40]} is {field.holds}"
            raise self._invalid(token, f"{shown}: it can't be compared with {token.text[:40]}{advice}")
        self._next()
        return value

    def _no_literal(self, field: SubjectField) -> PredicateInvalid:
        token = self._token
        if token.kind == "word" and self._token.keyword not in (*_OTHER_LANGUAGES, *_RESERVED):
            return self._invalid(token, f"expected {field.holds}, not {_named(token)}; text stands in quotes")
        return self._unexpected(field.holds)

    # --- fields ---

    def _field(self) -> SubjectField:
        token = self._token
        if token.kind != "word" or self._token.keyword in _RESERVED:
            if token.kind == "literal":
                raise self._invalid(token, "a field stands on the left of an operator, a value on the right")
            raise self._unexpected("a field: label.NAME, header.NAME, key, routing_key or size")
        head, dot, name = token.text.partition(".")
        kind = _FIELDS.get(head)
        if kind is None or (dot and kind not in _NAMED):
            raise self._unknown_field(token, head)
        self._next()
        if dot or kind not in _NAMED:
            return SubjectField(kind, name)
        return SubjectField(kind, self._bracketed_name(kind))

    def _bracketed_name(self, kind: FieldKind) -> str:
        if not self._accept("["):
            raise self._unexpected(f'the name, as in {kind}.NAME or {kind}["any name"]')
        name = self._token.value
        if not isinstance(name, str):
            raise self._unexpected("a name in quotes")
        self._next()
        self._expect("]")
        return name

    def _unknown_field(self, token: Token, head: str) -> PredicateInvalid:
        near = nearest(head, _FIELDS)
        if head in _FIELDS:
            return self._invalid(token, f'"{head}" has no parts')
        if near is not None:
            return self._invalid(token, f'unknown field "{token.text[:40]}"; did you mean "{near}"?')
        return self._invalid(
            token,
            f'unknown field "{token.text[:40]}"; known: label.NAME, header.NAME, key, routing_key, size',
        )


def _sort(value: LiteralValue) -> str:
    if isinstance(value, bool):
        return "bool"
    return "text" if isinstance(value, str) else "number"


def _named(token: Token) -> str:
    """A token as it is called in errors."""
    if token.kind == "end":
        return "the end"
    return token.text[:40] if token.kind == "literal" else f'"{token.text[:40]}"'
