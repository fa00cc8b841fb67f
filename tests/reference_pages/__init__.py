"""Generators of the reference pages that are made from the code: `python tests/reference_pages PAGE`."""
