"""The broker process that `linn serve` runs."""
