"""linn's own semantics keep the promises that anybody's must."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from linn.core.errors.tree import DeliveryNotCurrent
from linn.core.queue.effects import Effects
from linn.core.queue.event import Decided, SubscriptionEvent
from linn.core.queue.event_run import Holder
from linn.core.queue.lease import Lease, LeaseSettings
from linn.core.queue.offset_ranges import Range
from linn.core.queue.semantics import DeliverySemantics
from linn.core.queue.subscription import SharedSubscription
from linn.semantics.at_least_once import AtLeastOnce
from linn.semantics.at_most_once import AtMostOnce
from linn.semantics.exactly_once import ExactlyOnce, TwoPhaseSubscription
from linn.testing.semantics import SemanticsConformance
from linn.testing.subscription_machine import SubscriptionMachine

PATIENT = LeaseSettings()
STRICT = LeaseSettings(max_deliveries=2, redelivery_delay_ms=700, redelivery_backoff="exponential")
MANY = settings(max_examples=60, stateful_step_count=40, deadline=None)
NOTICE = settings(
    MANY, max_examples=400, derandomize=True, print_blob=False, report_multiple_bugs=False, phases=[Phase.generate]
)
"""Settings of Hypothesis: stop at the first failing example, with the same examples in each run."""


class TestAtLeastOnce(SemanticsConformance):
    @pytest.fixture(params=[PATIENT, STRICT], ids=["patient", "strict"])
    def semantics(self, request: pytest.FixtureRequest) -> DeliverySemantics:
        return AtLeastOnce(request.param)


class TestAtMostOnce(SemanticsConformance):
    @pytest.fixture
    def semantics(self) -> DeliverySemantics:
        return AtMostOnce()


class TestExactlyOnce(SemanticsConformance):
    @pytest.fixture(params=[PATIENT, STRICT], ids=["patient", "strict"])
    def semantics(self, request: pytest.FixtureRequest) -> DeliverySemantics:
        return ExactlyOnce(request.param)


class Patient(SubscriptionMachine):
    def make_semantics(self) -> DeliverySemantics:
        return AtLeastOnce(PATIENT)


class Strict(SubscriptionMachine):
    def make_semantics(self) -> DeliverySemantics:
        return AtLeastOnce(STRICT)


class InTwoPhases(SubscriptionMachine):
    def make_semantics(self) -> DeliverySemantics:
        return ExactlyOnce(STRICT)


class HandingOver(SubscriptionMachine):
    def make_semantics(self) -> DeliverySemantics:
        return AtMostOnce()


TestPatient = Patient.TestCase
TestPatient.settings = MANY
TestStrict = Strict.TestCase
TestStrict.settings = MANY
TestInTwoPhases = InTwoPhases.TestCase
TestInTwoPhases.settings = MANY
TestHandingOver = HandingOver.TestCase
TestHandingOver.settings = MANY


# --- the suite and the machine notice what is broken -----------------------------------------------------------------


class Forgetful(SharedSubscription):
    """Gives everything back when a part is acked."""

    def ack(self, consumer: int, delivery_id: int, ranges: Iterable[Range] | None, now: float) -> Effects:
        return self.nack(consumer, delivery_id, ranges, now)


class Hasty(SharedSubscription):
    """Skips a record after each delivery."""

    def acquire(self, consumer: int, records_max: int, end: int, now: float) -> Lease | None:
        lease = super().acquire(consumer, records_max, end, now)
        if lease is not None and lease.end < end:
            super().purge(lease.end + 1)
        return lease


class Silent(SharedSubscription):
    """Records nothing."""

    def take_events(self) -> list[SubscriptionEvent]:
        super().take_events()
        return []


class Lending(TwoPhaseSubscription):
    """Takes what was decided back from a consumer that leaves."""

    def consumer_gone(self, consumer: int, now: float) -> Effects:
        effects = super().consumer_gone(consumer, now)
        for first, end, decision in self.decided_to(f"consumer-{consumer}"):
            self.give_up_decided(decision.holder.name, decision.delivery_id, first, end, now)
        return effects


class Credulous(TwoPhaseSubscription):
    """Believes any delivery id of a done."""

    def done(self, holder: str, delivery_id: int, first: int, end: int) -> Effects:
        for decided in self.decided_to(holder):
            if decided.first <= first < decided.end:
                delivery_id = decided.decision.delivery_id
        return super().done(holder, delivery_id, first, end)


class Vague(TwoPhaseSubscription):
    """Does not record to whom records were decided."""

    def take_events(self) -> list[SubscriptionEvent]:
        return [event for event in super().take_events() if not isinstance(event, Decided)]


class Late(TwoPhaseSubscription):
    """Decides a lease that has ended."""

    def ready(
        self, consumer: int, delivery_id: int, ranges: Iterable[Range] | None, holder: Holder, now: float
    ) -> Effects:
        try:
            return super().ready(consumer, delivery_id, ranges, holder, now)
        except DeliveryNotCurrent:
            lease = self.acquire(consumer, 5, 12, now)
            return Effects() if lease is None else super().ready(consumer, lease.delivery_id, None, holder, now)


class Broken(AtLeastOnce):
    def __init__(self, kind: type[SharedSubscription]) -> None:
        super().__init__(PATIENT)
        self._kind = kind

    def shared_subscription(self, start: int) -> SharedSubscription:
        return self._kind(self.settings, start)


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        (Forgetful, "test_acked_records_are_settled_for_good"),
        (Hasty, "test_each_record_is_given_once_at_a_time_and_none_is_skipped"),
        (Silent, "test_settled_records_stay_settled_after_a_restart"),
        (Lending, "test_decided_records_are_their_holders_until_they_are_done"),
        (Credulous, "test_decided_records_are_their_holders_until_they_are_done"),
        (Vague, "test_decided_records_are_their_holders_until_they_are_done"),
        (Late, "test_a_lease_that_has_ended_is_not_decided"),
    ],
)
def test_a_broken_semantics_is_noticed(kind: type[SharedSubscription], promise: str) -> None:
    with pytest.raises(AssertionError):
        getattr(SemanticsConformance(), promise)(Broken(kind))

    class Machine(SubscriptionMachine):
        def make_semantics(self) -> DeliverySemantics:
            return Broken(kind)

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=NOTICE)
