"""New virtual environments: with all that this one has, or with nothing but what linn's wheel asks for.

Nothing is downloaded: dependencies are those of this environment, and packages are built with its hatchling.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

TIMEOUT_S = 110
_PIP = ["--quiet", "--disable-pip-version-check", "--no-deps"]


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
        options = [*_PIP, "--no-index", "--no-build-isolation"]
        _finish([sys.executable, "-m", "pip", "--python", str(self.python), "install", *options, str(package)])

    def run(self, *arguments: str, cwd: Path) -> str:
        """Run its Python; what it printed. Raises AssertionError where it failed."""
        # Without the current folder on the path: what is imported is what was installed.
        return _finish([str(self.python), "-P", *arguments], cwd=cwd)


class WheelEnvironment(FreshEnvironment):
    """One that has what `pip install 'linn[EXTRAS]'` brings, from linn's own wheel, and nothing else."""

    def __init__(self, folder: Path, project: Path, extras: Collection[str] = ()) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        self.python = folder / "bin" / "python"
        (site_packages,) = folder.glob("lib/python*/site-packages")
        wheels = folder / "wheels"
        _finish([sys.executable, "-m", "pip", "wheel", *_PIP, "--no-build-isolation", "-w", str(wheels), str(project)])
        (wheel,) = wheels.glob("linn-*.whl")
        self.install(wheel)
        (linn,) = metadata.distributions(name="linn", path=[str(site_packages)])
        for distribution in _wanted(linn, extras).values():
            for top in {
                file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")
            }:
                (site_packages / top).symlink_to(Path(str(distribution.locate_file(top))))


def _wanted(linn: metadata.Distribution, extras: Collection[str]) -> dict[str, metadata.Distribution]:
    """What a distribution requires with these extras, and what that requires in turn, by name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(linn, frozenset(extras))]
    while waiting:
        distribution, asked = waiting.pop()
        for requirement in map(Requirement, distribution.requires or ()):
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in asked | {""}):
                continue
            if requirement.name not in found:
                found[requirement.name] = metadata.distribution(requirement.name)
                waiting.append((found[requirement.name], frozenset(requirement.extras)))
    return found


def _finish(command: list[str], cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PIP_"))}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-6_000:]}\n{done.stderr[-2_000:]}"
    return done.stdout
