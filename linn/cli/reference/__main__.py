"""`python -m linn.cli.reference cli|configuration|hooks|metrics` prints a page of docs/reference."""

from __future__ import annotations

import argparse
import sys

from linn.cli.reference import commands, metrics, settings
from linn.core.plugins.manager import built_in

PAGES = {
    "cli": commands.page,
    "configuration": lambda: settings.configuration_page(built_in()),
    "hooks": settings.hooks_page,
    "metrics": metrics.page,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m linn.cli.reference")
    parser.add_argument("page", choices=PAGES)
    sys.stdout.write(PAGES[parser.parse_args().page]())
