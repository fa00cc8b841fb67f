"""Checks of `linn doctor`."""
