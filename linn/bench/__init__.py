"""The load engine behind `linn bench`."""
