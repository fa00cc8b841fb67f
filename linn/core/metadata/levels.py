"""Levels of a cluster, by which its brokers agree on the entries of its metadata, and on their requests to one another.

Law: a broker uses no feature above the level of its cluster, which an operator raises when all brokers know the next
one. So brokers of two versions serve together, and a version can be taken back until then.
"""

from __future__ import annotations

LEVEL_MIN = 2
LEVEL = 3
"""The least and the greatest level that this version knows; a new cluster has the greatest."""

TRANSIENT_LEVEL = 3
"""Topics may end with the node that holds them."""
SCHEDULE_LEVEL = 3
"""Records are delayed, and their logs replicated."""
THIN_LEVEL = 3
"""The logs of topics with replicas are thinned."""
