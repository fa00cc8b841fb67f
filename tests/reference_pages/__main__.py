"""`python tests/reference_pages cli|configuration|hooks|metrics` prints a page of docs/reference."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # As in a run of the tests, which use these modules as well.

from linn.core.plugins.manager import built_in
from reference_pages import commands, metrics, settings

PAGES = {
    "cli": commands.page,
    "configuration": lambda: settings.configuration_page(built_in()),
    "hooks": settings.hooks_page,
    "metrics": metrics.page,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python tests/reference_pages")
    parser.add_argument("page", choices=PAGES)
    sys.stdout.write(PAGES[parser.parse_args().page]())
