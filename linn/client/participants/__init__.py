"""Participants of exactly-once delivery: the places where a consumer stores effects, and the marks of their records."""
