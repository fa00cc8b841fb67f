"""Broker process that `linn serve` runs."""
