"""Load engine behind `linn bench`."""
