"""`python -m linn` is the command `linn`."""

from __future__ import annotations

from linn.cli.main import main

main()
