"""The checker; and the helpers of the tests of brokers and of clusters, which are used here too."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / name) for name in ("broker", "cluster"))]

from history import Checker  # noqa: E402


@pytest.fixture(scope="session")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Checker:
    """The checker, built from this folder."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed: apt-get install golang")
    loaded = subprocess.run([go, "mod", "download"], cwd=HERE, capture_output=True, text=True, timeout=300)
    if loaded.returncode:
        pytest.skip(f"porcupine can't be downloaded: {loaded.stderr}")
    program = tmp_path_factory.mktemp("checker") / "checker"
    built = subprocess.run([go, "build", "-o", program, "."], cwd=HERE, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    return Checker(program)
