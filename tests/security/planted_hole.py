"""Run tests with one check of rights left out: `planted_hole.py MODULE LINES PLANTED -- PYTEST ARGUMENTS`.

LINES are whole lines of the module, which are replaced by PLANTED; no file is changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "mutations"))

from mutation import Mutation
from planting import check_planted, plant


def main() -> int:
    module, lines, planted, _, *arguments = sys.argv[1:]
    hole = Mutation("a hole", "", "", module, lines, planted, "", 0, "")
    plant(hole)  # Before pytest imports linn's plugin.
    code = pytest.main(arguments)
    check_planted(hole)
    return code


if __name__ == "__main__":
    sys.exit(main())
