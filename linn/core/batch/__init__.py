"""The record batch: the unit of work, the same bytes on the wire, in memory and on disk."""
