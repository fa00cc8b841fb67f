"""Each check of rights, left out, is found by a test. Of several lines, the first is left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SESSION, PUBLISHER = "linn.core.gateway.session", "linn.core.publish.publisher"
ADMINISTRATION = "linn.core.admin.administration"
HOLES = [
    ("linn.core.admin.administration", "caller.access.check_all(known.needs(asked))", "topic.delete"),
    (
        "linn.core.admin.administration",
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
    (SESSION, "self._access.check(SEE, BROKER)", "page_of_metrics"),
    (SESSION, "self._access.check_all(needs)\ntopic = rooms.catalog.topic(request.topic)", "Subscribe"),
    (SESSION, "self._access.check(CONFIGURE, TOPIC, request.topic)", "made_by_using"),
    (SESSION, "self._access.check(CONSUME, TOPIC, name)", "Fetch"),
    (SESSION, "self._access.check(BROWSE, TOPIC, name)", "Fetch"),
    (SESSION, "self._access.check(USE, TRANSACTION, name)", "OpenTransactions"),
    (SESSION, "self._access.check_all([Need(USE, TRANSACTION, name)])", "transaction_can_only"),
    (SESSION, "consumer.end(error)", "lost_right_ends"),
    ("linn.core.gateway.fetch", "self._access.check(BROWSE, TOPIC, self._topic)", "lost_right_ends"),
    (PUBLISHER, "access.check(CONFIGURE, TOPIC, request.target)", "made_by_using"),
    (PUBLISHER, "access.check(PUBLISH, EXCHANGE if request.to_exchange else TOPIC, request.target)", "Publish"),
    ("linn.core.publish.plan", "self._access.check(PUBLISH, TOPIC, key)", "Publish"),
    ("linn.core.security.policy", "access.change(self._rules_of(access.user))", "policy_follows"),
    ("linn.core.security.access", "answers.clear()", "remembered_answers"),
]


@pytest.mark.parametrize(("module", "lines", "found_by"), HOLES, ids=lambda text: text[:60])
def test_a_check_that_is_left_out_is_found(module: str, lines: str, found_by: str) -> None:
    _, _, kept = lines.partition("\n")
    tests = [str(HERE / name) for name in ("test_rights.py", "test_users.py", "test_access.py")]
    chosen = ["-m", "quick or test", "-k", found_by, "-x", "-n", "0", "--assert=plain", "--no-header"]
    command = [sys.executable, str(HERE / "planted_hole.py"), module, lines, kept or "pass", "--", *tests, *chosen]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed" in done.stdout, done.stdout + done.stderr
