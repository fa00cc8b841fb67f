"""Generators of the reference pages that are made from the code: `python -m linn.cli.reference PAGE`."""
