"""linn's own semantics keep the promises that anybody's must, and the suite notices one that does not."""

from __future__ import annotations

import itertools

import pytest

from linn.core.queue.lease import LEASE_MS_MAX, LeaseSettings
from linn.core.queue.semantics import Acks, ConfirmWhen, DeliverySemantics
from linn.semantics.at_least_once import AtLeastOnce
from linn.semantics.at_most_once import AtMostOnce
from linn.semantics.exactly_once import ExactlyOnce
from linn.testing.semantics import SemanticsConformance

PATIENT = LeaseSettings()
STRICT = LeaseSettings(max_deliveries=2, redelivery_delay_ms=700, redelivery_backoff="exponential")


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


# --- the suite notices what is broken --------------------------------------------------------------------------------


class Hasty(AtLeastOnce):
    """Confirms earlier the more is asked for."""

    def confirm_when(self, acks: Acks) -> ConfirmWhen:
        return ConfirmWhen.ACCEPTED if acks == "all" else ConfirmWhen.DURABLE


class Fickle(AtLeastOnce):
    """Answers the same question differently each time."""

    def __init__(self, settings: LeaseSettings) -> None:
        super().__init__(settings)
        self._answers = itertools.count()

    def redelivery_ms(self, attempts: int, asked_ms: int | None) -> int | None:
        return next(self._answers)


class Endless(AtLeastOnce):
    """Delays longer than a delay may last."""

    def redelivery_ms(self, attempts: int, asked_ms: int | None) -> int | None:
        return LEASE_MS_MAX + 1


class Torn(ExactlyOnce):
    """Settles on delivery, and in two phases."""

    settles_on_delivery = True


class Instant(AtLeastOnce):
    """Ends a lease as it begins."""

    def __init__(self, settings: LeaseSettings) -> None:
        super().__init__(settings)
        self.lease_ms = 0


class Growing(AtLeastOnce):
    """Changes the size of its leases."""

    def __init__(self, settings: LeaseSettings) -> None:
        super().__init__(settings)
        self._asked = itertools.count(1)

    @property
    def lease_records_max(self) -> int:  # type: ignore[override] # So that it changes.
        return next(self._asked)

    @lease_records_max.setter
    def lease_records_max(self, records: int) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        (Hasty, "test_stronger_acks_never_confirm_earlier"),
        (Fickle, "test_a_returned_record_has_a_delay_within_bounds_or_is_dead"),
        (Endless, "test_a_returned_record_has_a_delay_within_bounds_or_is_dead"),
        (Torn, "test_records_are_not_settled_on_delivery_and_in_two_phases"),
        (Instant, "test_leases_have_a_duration_and_a_size"),
        (Growing, "test_its_promises_do_not_change"),
    ],
)
def test_a_broken_semantics_is_noticed(kind: type[AtLeastOnce], promise: str) -> None:
    with pytest.raises(AssertionError):
        getattr(SemanticsConformance(), promise)(kind(PATIENT))
