"""All mutations, by name."""

from __future__ import annotations

import re
from pathlib import Path

from broker_mutations import BROKER_MUTATIONS
from mutation import Mutation
from producer_mutations import PRODUCER_MUTATIONS
from queue_mutations import QUEUE_MUTATIONS
from storage_mutations import STORAGE_MUTATIONS
from transaction_mutations import TRANSACTION_MUTATIONS
from two_phase_mutations import TWO_PHASE_MUTATIONS

ALL = (
    *STORAGE_MUTATIONS,
    *QUEUE_MUTATIONS,
    *BROKER_MUTATIONS,
    *PRODUCER_MUTATIONS,
    *TWO_PHASE_MUTATIONS,
    *TRANSACTION_MUTATIONS,
)
CATALOGUE: dict[str, Mutation] = {mutation.name: mutation for mutation in ALL}
assert len(CATALOGUE) == len(ALL), "two mutations have one name"


def rewrite_seed(mutation: Mutation, seed: int) -> None:
    """Write another seed into the file that holds the mutation."""
    entry = re.compile(rf'(        name="{re.escape(mutation.name)}",\n(?:(?!    \),).*\n)*?        seed=)\d+')
    for path in Path(__file__).parent.glob("*_mutations.py"):
        source = path.read_text(encoding="utf-8")
        changed = entry.sub(rf"\g<1>{seed}", source)
        if changed != source:
            path.write_text(changed, encoding="utf-8")
