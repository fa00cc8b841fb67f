"""The brokers and raw clients of the broker's tests, for all tests here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "broker"))
