"""The conformance suite of authorizers: `AuthorizerConformance`, to subclass.

    class TestOwnNames(AuthorizerConformance):
        @pytest.fixture
        def harness(self) -> AuthorizerHarness:
            return AuthorizerHarness(
                make=lambda: OwnNames(OwnNamesSettings(), RealEnv()),
                allows=[("ann", "publish", "topic", "ann.orders")],
                denies=[("ann", "publish", "topic", "bob.orders")],
            )

Law: a test does not know how the authorizer decides; it checks the promises on which rights rely.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from linn.core.ports.authorizer import Authorizer, Decision
from linn.core.security.authority import QUESTIONS_AT_ONCE, problem_with
from linn.rights import BROKER, OPERATIONS

LOOP_S_MAX = 0.02
"""Processor time that one answer may take in the broker's loop."""
Question = tuple[str, str, str, str]
"""User, operation, kind, and name of the resource."""
_USERS = ("nobody", "anonymous", "\u00fcnicode", "x" * 255, "*", "a.b", "", "ann@example.org")
_NAMES = ("x", "x" * 255, "\u00fcnicode", "*", "..", ".", "__audit", "../etc", "a b", "' or 1=1 --")


@dataclass(frozen=True)
class AuthorizerHarness:
    """Authorizer, and questions for it."""

    make: Callable[[], Authorizer]
    """Make an authorizer."""
    allows: Sequence[Question]
    """Questions that it answers with yes."""
    denies: Sequence[Question]
    """Questions that it answers with no."""

    def questions(self) -> list[Question]:
        """Return all these questions, and one about each operation for made-up users and names."""
        found = [*self.allows, *self.denies]
        for kind, operations in OPERATIONS.items():
            names = ("",) if kind == BROKER else _NAMES
            found += [(user, each, kind, name) for user in _USERS for each in operations for name in names]
        return found


class AuthorizerConformance:
    """The promises of `linn.core.ports.authorizer`. A subclass gives the fixture `harness`."""

    async def test_it_allows_and_denies(self, harness: AuthorizerHarness) -> None:
        authorizer = harness.make()
        for question in harness.allows:
            assert (await authorizer.may(*question)).allowed is True, question
        for question in harness.denies:
            assert (await authorizer.may(*question)).allowed is False, question

    async def test_each_answer_is_a_decision_that_holds_for_a_while(self, harness: AuthorizerHarness) -> None:
        authorizer = harness.make()
        for question in harness.questions():
            assert problem_with(await authorizer.may(*question)) is None, question

    async def test_who_may_do_something_may_see_it(self, harness: AuthorizerHarness) -> None:
        """Roles do the same: a client describes a topic before it publishes."""
        authorizer = harness.make()
        for user, _, kind, name in harness.allows:
            assert (await authorizer.may(user, "see", kind, name)).allowed, f"{user} does not see {kind}:{name}"

    async def test_questions_at_the_same_time_are_kept_apart(self, harness: AuthorizerHarness) -> None:
        authorizer = harness.make()
        found: dict[int, Decision] = {}

        async def ask(number: int, question: Question) -> None:
            found[number] = await authorizer.may(*question)

        asked = [*((True, it) for it in harness.allows), *((False, it) for it in harness.denies)]
        asked = (asked * QUESTIONS_AT_ONCE)[:QUESTIONS_AT_ONCE]
        async with trio.open_nursery() as nursery:
            for number, (_, question) in enumerate(asked):
                nursery.start_soon(ask, number, question)
        assert [found[number].allowed for number in range(len(asked))] == [allowed for allowed, _ in asked]

    async def test_it_works_after_a_question_was_cancelled(self, harness: AuthorizerHarness) -> None:
        authorizer = harness.make()
        for question in harness.allows:
            with trio.CancelScope() as scope:
                scope.cancel()
                await authorizer.may(*question)
            assert (await authorizer.may(*question)).allowed

    async def test_it_computes_elsewhere(self, harness: AuthorizerHarness) -> None:
        authorizer = harness.make()
        for question in (*harness.allows, *harness.denies):
            await authorizer.may(*question)  # Imports, connections.
            before_s = time.thread_time()
            await authorizer.may(*question)
            assert time.thread_time() - before_s < LOOP_S_MAX, "it holds up the broker's loop, and all connections"
