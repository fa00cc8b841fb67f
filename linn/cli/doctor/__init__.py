"""The checks of `linn doctor`."""
