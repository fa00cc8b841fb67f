"""Each check of rights, left out, is found by a test, and so is each weaker login."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SESSION, PUBLISHER = "linn.core.gateway.session", "linn.core.publish.publisher"
ADMINISTRATION = "linn.core.admin.administration"
TRANSACTIONS = "linn.core.gateway.session_transactions"
RIGHTS = ("test_rights.py", "test_users.py", "test_access.py")
SCRAM, PLAIN = "linn.core.security.sasl.scram", "linn.core.security.sasl.plain"
POLICY, DRIVERS = "linn.core.security.policy", "test_driver_logins.py"
AUTHENTICATORS, AUTHORITY = "linn.core.security.authenticators", "linn.core.security.authority"
TOKENS, LOGINS, TLS = "linn.core.security.sasl.tokens", "linn.core.security.logins", "linn.core.env.tls"
HOLES = [
    ("linn.core.admin.administration", "caller.access.check_all(known.needs(asked))", "topic.delete"),
    (
        "linn.core.admin.topics",
        "caller.access.check_all(Need(rights.BIND, rights.EXCHANGE, binding.exchange) for binding in bindings)",
        "changing_the_bindings",
    ),
    ("linn.core.admin.groups", "caller.access.check(SEE, TOPIC, asked.topic)", "group.list"),
    ("linn.core.admin.subscriptions", "caller.access.check(SEE, TOPIC, asked.topic)", "subscription.list"),
    ("linn.core.admin.deliveries", "caller.access.check(BROWSE, TOPIC, asked.topic)", "delivery.list"),
    ("linn.core.admin.users", "caller.access.check(rights.ADMIN, rights.BROKER)", "user.can"),
    ("linn.core.admin.users", "self._check_grant(user.roles, caller)", "gives_and_takes"),
    ("linn.core.admin.users", "self._check_grant(before.roles, caller)", "gives_and_takes"),
    ("linn.core.admin.users", "self._check_rules(rules, asked.name, caller)", "gives_and_takes"),
    ("linn.core.admin.users", "self._check_rules(before, asked.name, caller)", "gives_and_takes"),
    (SESSION, "self._access.check(SEE, TOPIC, name)", "Describe"),
    (SESSION, "await self.decided(lambda: self._access.check(SEE, BROKER))", "page_of_metrics"),
    (SESSION, "self._access.check_all(needs)\ntopic = rooms.catalog.led_topic(request.topic)", "Subscribe"),
    (SESSION, "needs.append(Need(CONFIGURE, TOPIC, request.topic))", "made_by_using"),
    (SESSION, "self._access.check_any([consume] if where else [consume, browse])", "Fetch"),
    (SESSION, "self._access.check(BROWSE, TOPIC, name)", "Fetch"),
    (
        TRANSACTIONS,
        "await self._access.decided(lambda: self._access.check(USE, TRANSACTION, name))",
        "OpenTransactions",
    ),
    (TRANSACTIONS, "self._access.check_all([Need(USE, TRANSACTION, name)])", "transaction_can_only"),
    (SESSION, "consumer.end(error)", "lost_right_ends"),
    (PUBLISHER, "access.check(CONFIGURE, TOPIC, request.target)", "made_by_using"),
    (PUBLISHER, "access.check(PUBLISH, EXCHANGE if request.to_exchange else TOPIC, request.target)", "Publish"),
    (
        "linn.core.publish.plan",
        "self._access.check_all([Need(PUBLISH, TOPIC, key) for key in keys[first : first + STEP_RECORDS]])",
        "Publish",
    ),
    ("linn.core.security.policy", "access.change(self._rules_of(user, roles))", "policy_follows"),
    ("linn.core.security.access", "answers.clear()", "remembered_answers"),
]
"""Module, lines of which the first is left out, and the name of a test that finds it."""
WEAKER = [
    (
        "linn.core.security.access",
        "found = [self._prefixes.get((kind, name[:length])) for length in lengths]",
        "found = [ops for (of, start), ops in self._prefixes.items() if of == kind and name.startswith(start[:-1])]",
        ("test_access.py", "rules_allow_what_a_search"),
    ),
    (
        SCRAM,
        "is_same = hmac.compare_digest(attributes[1][2:].encode(), self._whole_nonce.encode())",
        "is_same = attributes[1][2:].startswith(self._whole_nonce)",
        ("test_scram.py", "nonce_is_compared_in_full"),
    ),
    (
        SCRAM,
        "is_same = hmac.compare_digest(attributes[1][2:].encode(), self._whole_nonce.encode())",
        "is_same = self._whole_nonce.startswith(attributes[1][2:])",
        ("test_scram.py", "nonce_is_compared_in_full"),
    ),
    (
        SCRAM,
        "is_bound = hmac.compare_digest(_decoded(attributes[0][2:]), header)",
        "is_bound = True",
        ("test_scram.py", "bound_to_the_certificate"),
    ),
    (
        SCRAM,
        "expects, self._expects = self._expects, _Expects.NOTHING",
        "expects = self._expects",
        ("test_scram.py", "taken_twice"),
    ),
    (
        SCRAM,
        "if not salting.salt or not ITERATIONS_MIN <= salting.iterations <= ITERATIONS_MAX:",
        "if not salting.salt:",
        ("test_scram.py", "no_useless_and_no_endless"),
    ),
    (
        SCRAM,
        "if not nonce.startswith(self._nonce) or len(nonce) <= len(self._nonce):",
        "if not nonce.startswith(self._nonce):",
        ("test_scram.py", "more_than_its_own_nonce"),
    ),
    (
        SCRAM,
        'if not hmac.compare_digest(_decoded(text[2:].split(",")[0]), self._signature):',
        'if not self._signature.startswith(_decoded(text[2:].split(",")[0])):',
        ("test_scram.py", "does_not_know_the_verifier"),
    ),
    (
        PLAIN,
        "parts = [verifier.text(), user, password]",
        "parts = [user, password]",
        ("test_plain.py", "ends_the_old_one"),
    ),
    (
        PLAIN,
        "parts = [verifier.text(), user, password]",
        "parts = [verifier.text(), user]",
        ("test_plain.py", "remembered"),
    ),
    (
        PLAIN,
        "if found is not None and self._known.get(key, 0.0) > self._monotonic():",
        "if found is not None and key in self._known:",
        ("test_plain.py", "remembered_for_a_minute"),
    ),
    (TOKENS, "if not begins <= now_s < ends:", "if not begins <= now_s:", ("test_tokens.py", "claims_that")),
    (TOKENS, "if not begins <= now_s < ends:", "if not now_s < ends:", ("test_tokens.py", "claims_that")),
    (TOKENS, 'if claims.get("iss") != rules.issuer:', "if False:", ("test_tokens.py", "claims_that")),
    (
        TOKENS,
        "if rules.audience not in (audiences if isinstance(audiences, list) else [audiences]):",
        "if rules.audience not in audiences:",
        ("test_tokens.py", "claims_that"),
    ),
    (
        TOKENS,
        "if not isinstance(claim, int | float) or isinstance(claim, bool) or not abs(claim) < 1e12:",
        "if claim is None:\n    return 1e11\nif False:",
        ("test_tokens.py", "claims_that"),
    ),
    (
        TOKENS,
        "if not isinstance(header, dict) or any(name in header for name in _CHOOSING):",
        "if not isinstance(header, dict):",
        ("test_tokens.py", "does_not_choose"),
    ),
    (LOGINS, "if self._is_over or self._messages > MESSAGES_MAX:", "if False:", ("test_logins.py", "one_attempt")),
    (
        LOGINS,
        'if mechanism not in self.mechanisms or self._mechanism not in ("", mechanism):',
        "if False:",
        ("test_logins.py", "not_offered"),
    ),
    (LOGINS, "self._logins.failures.count(self._key)", "pass", ("test_logins.py", "fifth_failure")),
    (
        LOGINS,
        "if peer.uid == logins.own_uid:  # It could read all files and all memory anyway.",
        "if True:",
        ("test_logins.py", "known_by"),
    ),
    (
        LOGINS,
        "if self._peer.is_private:",
        "if True:",
        ("test_logins.py", "offered"),
    ),
    (
        LOGINS,
        "if is_ours and self._logins.users.find(user) is None:",
        "if False:",
        ("test_authenticators.py", "means_something"),
    ),
    (
        LOGINS,
        "roles = tuple(role for role in bearer.roles or () if role != ADMINISTRATOR)",
        "roles = tuple(bearer.roles or ())",
        ("test_token_file.py", "roles_come_from_a_claim"),
    ),
    (
        AUTHENTICATORS,
        "if trio.current_time() >= scope.deadline:  # An answer may also come late without being cancelled.",
        "if False:",
        ("test_authenticators.py", "late_answer"),
    ),
    (AUTHENTICATORS, "problem = _problem_with(found)", "problem = None", ("test_authenticators.py", "anything_else")),
    (
        AUTHORITY,
        "problem = _DENIED_LATE if is_late else problem_with(found)",
        "problem = None",
        ("test_authorizers.py", "failure_denies"),
    ),
    (AUTHORITY, "access.forget(need)", "pass", ("test_authorizers.py", "as_long_as_it_says")),
    (
        AUTHORITY,
        "if held.allowed and access.is_needed(need):",
        "if False:",
        ("test_authorizers.py", "asked_for_again_in_time"),
    ),
    (
        AUTHORITY,
        "if not access.held[need].allowed:",
        "if False:",
        ("test_authorizers.py", "when_the_authorizer_is_late"),
    ),
    (AUTHORITY, "if asked_for != need:", "if False:", ("test_authorizers.py", "audit_trail_stays")),
    (
        AUTHORITY,
        "return all(self._by_rules(operation, rule.kind, rule.name) for operation in rule.operations)",
        "return all(self.may(operation, rule.kind, rule.name) for operation in rule.operations)",
        ("test_authorizers.py", "an_hour_at_most"),
    ),
    (
        "linn.protocols.capnp.conversation",
        "if now is None or (now.user, {*now.roles}) != (before.user, {*before.roles}):",
        "if now is None:",
        ("test_token_renewal.py", "any_other_login and user"),
    ),
    (
        TLS,
        "context.verify_mode = _VERIFY[client_certificate]",
        "context.verify_mode = ssl.CERT_OPTIONAL",
        ("test_tls_listeners.py", "required_certificate"),
    ),
    (TLS, "if end_ms <= now_ms:", "if False:", ("test_tls_listeners.py", "files_of_no_use")),
    (POLICY, "access.change(())", "pass", (DRIVERS, "login_ends_with")),
    (POLICY, "del self.users.services[user.name]", "pass", (DRIVERS, "login_ends_with")),
    (
        POLICY,
        "access = self._accesses.pop((user.name, frozenset()), None)",
        "access = self._accesses.get((user.name, frozenset()))",
        (DRIVERS, "login_ends_with"),
    ),
    (POLICY, "is_ours = user in self.users.services", "is_ours = False", (DRIVERS, "no_authorizer")),
    (
        LOGINS,
        "is_ours = user in (ADMINISTRATOR, ANONYMOUS) or user.startswith(SERVICE)",
        "is_ours = user in (ADMINISTRATOR, ANONYMOUS)",
        ("test_logins.py", "password_alone"),
    ),
    (
        "linn.core.config.service_tables",
        "access.check_all(service.needs(name, own) if own is not None else ())",
        "pass",
        ("test_live_sinks.py", "where_its_maker"),
    ),
    (
        "linn.spark_plugin.service.pipeline",
        'if name_problem(name) is None:  # A "*" would be more than a name.',
        "if name:",
        (DRIVERS, "becomes_a_pattern"),
    ),
]
"""Module, lines, what stands in their place, and the file and name of a test that finds it."""


@pytest.mark.parametrize(("module", "lines", "found_by"), HOLES, ids=lambda text: text[:60])
def test_a_check_that_is_left_out_is_found(module: str, lines: str, found_by: str) -> None:
    _, _, kept = lines.partition("\n")
    check_found(module, lines, kept or "pass", RIGHTS, found_by)


@pytest.mark.parametrize(("module", "lines", "planted", "found_by"), WEAKER, ids=lambda text: text[:60])
def test_a_weaker_login_is_found(module: str, lines: str, planted: str, found_by: tuple[str, str]) -> None:
    file, name = found_by
    check_found(module, lines, planted, [file], name)


def check_found(module: str, lines: str, planted: str, files: Sequence[str], found_by: str) -> None:
    """Plant something, and check that exactly one of these tests fails, and then no other is run."""
    tests = [str(HERE / name) for name in files]
    chosen = ["-m", "quick or test", "-k", found_by, "-x", "-n", "0", "--assert=plain", "--no-header"]
    command = [sys.executable, str(HERE / "planted_hole.py"), module, lines, planted, "--", *tests, *chosen]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed" in done.stdout, done.stdout + done.stderr
