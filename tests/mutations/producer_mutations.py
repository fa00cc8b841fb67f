"""Bugs of idempotent producers: what is stored twice, out of order, or not at all because it seems a duplicate."""

from __future__ import annotations

from mutation import Mutation

_PARTITION = "linn.core.log.partition"
_PRODUCERS = "Published once"

PRODUCER_MUTATIONS = (
    Mutation(
        name="a producer's batch is remembered before it is stored",
        breaks="A partition remembers what it has appended, and nothing before.",
        guarantee=_PRODUCERS,
        module=_PARTITION,
        original="""
            offset = self.append(batch)
            producers = self.log.facts.producers
            before = len(producers)
            producers.stored(numbers, offset, self._clock.monotonic(), batch.offset_span)
        """,
        planted="""
            producers = self.log.facts.producers
            before = len(producers)
            producers.stored(numbers, self.log.bounds()[1], self._clock.monotonic())
            offset = self.append(batch)
        """,
        simulation="broker",
        seed=2,
        says="[nothing confirmed is lost]",
    ),
    Mutation(
        name="fewer batches are remembered than may be in flight",
        breaks="A batch in flight is found again, however many were sent behind it.",
        guarantee=_PRODUCERS,
        module="linn.core.log.producers",
        original="WINDOW = 8",
        planted="WINDOW = 7",
        simulation="producer table",
        seed=4,
        says="is producer.duplicate, and by the log",
    ),
    Mutation(
        name="a batch of an earlier epoch is taken",
        breaks="What is late can't follow what replaced it.",
        guarantee=_PRODUCERS,
        module="linn.core.log.producers",
        original="if batch.epoch < producer.epoch:",
        planted="if batch.epoch > producer.epoch:",
        simulation="producer table",
        seed=0,
        says="by the log producer.fenced",
    ),
    Mutation(
        name="a part of a batch has no producer",
        breaks="Parts that the broker cuts keep the numbers of the whole.",
        guarantee=_PRODUCERS,
        module="linn.core.batch.builder",
        original="producer_id=batch.producer_id,",
        planted="",
        simulation="cut batches",
        seed=0,
        says="each once, not",
    ),
    Mutation(
        name="a snapshot of producers is ahead of its log",
        breaks="The state of producers follows from the log, and from nothing that a crash may take from it.",
        guarantee=_PRODUCERS,
        module="linn.storage_engines.segmented_log.log",
        original="""
                for segment in finished:
                    await segment.write_index()
        """,
        planted="""
                for segment in finished:
                    segment.facts = self.facts.encode()
                    await segment.write_index()
        """,
        simulation="producers of a log",
        seed=0,
        says="is known, and",
    ),
    Mutation(
        name="batches behind a refused one are taken",
        breaks="A producer's batches are stored in order, through an exchange as well.",
        guarantee=_PRODUCERS,
        module="linn.core.publish.lane_order",
        original="if missing is not None and batch.producer_epoch == missing[0] and batch.first_sequence > missing[1]:",
        planted="if False:",
        simulation="producers",
        seed=104,
        says="out of order",
    ),
    Mutation(
        name="two clients are given the same producer ids",
        breaks="An id belongs to one client.",
        guarantee=_PRODUCERS,
        module="linn.core.publish.producer_ids",
        original="self._connections += 1",
        planted="self._connections += 0",
        simulation="producers",
        seed=22,
        says="is not in",
    ),
    Mutation(
        name="a batch with another client's id is taken",
        breaks="A producer's numbers are used by the client that got its id, and by no other.",
        guarantee=_PRODUCERS,
        module="linn.core.publish.publish_lane",
        original="if batch.producer_id and batch.producer_id >> PRODUCER_BITS not in self._owned.blocks:",
        planted="if False:",
        simulation="forging",
        seed=0,
        says="and confirmed was",
    ),
    Mutation(
        name="any key opens a block of producer ids",
        breaks="An id is claimed by its key, and by no other.",
        guarantee=_PRODUCERS,
        module="linn.core.publish.producer_ids",
        original='if not compare_digest(right.to_bytes(KEY_BYTES, "little"), key.to_bytes(KEY_BYTES, "little")):',
        planted="if False:",
        simulation="forging",
        seed=5,
        says="the owner was refused: producer.fenced",
    ),
    Mutation(
        name="a gap in a producer's sequence is taken",
        breaks="A gap is refused, and nothing is stored.",
        guarantee=_PRODUCERS,
        module="linn.core.log.producers",
        original="if batch.first > producer.end and not batch.scattered:",
        planted="if False:",
        simulation="producer table",
        seed=0,
        says="by the log producer.out_of_order",
    ),
    Mutation(
        name="an opening forgets the epochs behind the last index",
        breaks="Recovery rebuilds what the log says of its leader epochs.",
        guarantee="Order",
        module="linn.core.log.facts",
        original="self.epochs.note(batch.leader_epoch, batch.base_offset)",
        planted="pass",
        simulation="producers of a log",
        seed=2,
        says="epochs.at(first) == epoch",
    ),
    Mutation(
        name="an epoch ends one record too late",
        breaks="A reader is told of every record that it has read and a power loss took.",
        guarantee="Order",
        module="linn.core.log.partition_reading",
        original="if end < offset:",
        planted="if end + 1 < offset:",
        simulation="truncation",
        seed=0,
        says="something else than the log",
    ),
    Mutation(
        name="a reader that is told of lost records is given what had arrived of them",
        breaks="After `log.truncated` a reader reads what is stored from that place on.",
        guarantee="Order",
        module="linn.client.consume.subscribing",
        original="lost = self._arrived.take_back("
        "lambda it: it.partition == error.partition and it.end_offset > error.offset)",
        planted="lost = self._arrived.take_back(lambda it: False)",
        simulation="truncation",
        seed=5,
        says="two records",
    ),
)
