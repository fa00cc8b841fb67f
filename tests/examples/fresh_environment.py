"""A new virtual environment that has what this one has, and whatever is installed into it beside that.

Nothing is downloaded: linn and its dependencies are those of this environment, by a `.pth` file, and packages are built
with this environment's hatchling.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

TIMEOUT_S = 110


class FreshEnvironment:
    """A virtual environment in `folder`."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        self.python = folder / "bin" / "python"
        (site_packages,) = folder.glob("lib/python*/site-packages")
        ours = sysconfig.get_path("purelib")
        (site_packages / "beside.pth").write_text(f"import site; site.addsitedir({ours!r})\n")

    def install(self, package: Path) -> None:
        """Install a package from its source, as `pip install PACKAGE` does."""
        options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]
        self._finish([sys.executable, "-m", "pip", "--python", str(self.python), "install", *options, str(package)])

    def run(self, *arguments: str, cwd: Path) -> str:
        """Run its Python; what it printed. Raises AssertionError where it failed."""
        # Without the current folder on the path: what is imported is what was installed.
        return self._finish([str(self.python), "-P", *arguments], cwd=cwd)

    def _finish(self, command: list[str], cwd: Path | None = None) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PIP_"))}
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-6_000:]}\n{done.stderr[-2_000:]}"
        return done.stdout
