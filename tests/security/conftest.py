"""The raw client is that of the broker's tests, and the topic that others follow that of the cluster's."""

import sys
from pathlib import Path

for folder in ("broker", "cluster"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
