"""Bugs in what the features of a queue do together: orders, ids, transactions and phases, over changes and crashes."""

from __future__ import annotations

from mutation import Mutation

_ORDERS = "linn.plugins.orders"
_LIVES = "queue lives"

QUEUE_LIFE_MUTATIONS = (
    Mutation(
        name="a replay ends delays by its own clock",
        breaks="The state of a queue follows from its events alone, whatever the clock of the next leader says.",
        guarantee="At least once",
        module="linn.core.queue.subscription_log",
        original="""
        if kept is not None:
            self._subscription.apply(kept)
        """,
        planted="""
        if kept is not None:
            self._subscription.apply(kept)
            self._subscription.expire(self._clock.monotonic())
        """,
        simulation=_LIVES,
        seed=2,
        says="a replay gives the same state",
    ),
    Mutation(
        name="the lowest priority is first",
        breaks="The highest priority is delivered first.",
        guarantee="Order",
        module=_ORDERS,
        original="for level in range(len(self._lanes) - 1, -1, -1):",
        planted="for level in range(len(self._lanes)):",
        simulation=_LIVES,
        seed=2,
        says="priority: ",
    ),
    Mutation(
        name="a tenant that was served stays the next",
        breaks="The tenant with the fewest records in flight is next.",
        guarantee="Order",
        module=_ORDERS,
        original="self.load = self.in_flight / self.weight",
        planted="self.load = 0.0",
        simulation=_LIVES,
        seed=26,
        says="fair: ",
    ),
    Mutation(
        name="an index that is built anew forgets what is in flight",
        breaks="One record of a key is in flight at a time, also over restarts and changes of the order.",
        guarantee="Order",
        module="linn.core.queue.ordering",
        original="self.order.hold(held, held_classes)",
        planted="pass",
        simulation=_LIVES,
        seed=26,
        says="key: ",
    ),
    Mutation(
        name="an aborted transaction settles what it holds",
        breaks="What an aborted transaction was to settle is delivered again.",
        guarantee="Transactions",
        module="linn.core.queue.partition_queue",
        original="self.follow(end(*held) if is_commit else give_up(*held, self.clock.monotonic()))",
        planted="self.follow(end(*held) if is_commit or give_up is None else end(*held))",
        simulation=_LIVES,
        seed=5,
        says="what was confirmed is delivered, dead, or dropped by its limit",
    ),
    Mutation(
        name="what is decided to one consumer is repeated to another",
        breaks="What was decided is the name's, whatever restarts.",
        guarantee="Exactly once",
        module="linn.core.queue.queue",
        original="consumer.repeats.extend(self._decided_to(name))",
        planted="consumer.repeats.extend([it for other in ('ann', 'bob') for it in self._decided_to(other)])",
        simulation=_LIVES,
        seed=4,
        says="to its holder alone",
    ),
)
