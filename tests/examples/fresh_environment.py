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

TIMEOUT_S = 600
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


def build_wheel(project: Path, folder: Path) -> Path:
    """Build a project's wheel into a folder of its own."""
    _finish([sys.executable, "-m", "pip", "wheel", *_PIP, "--no-build-isolation", "-w", str(folder), str(project)])
    (wheel,) = folder.glob("*.whl")
    return wheel


class WheelEnvironment(FreshEnvironment):
    """One that has what `pip install 'linn[EXTRAS]' OTHERS...` brings, linn from its wheel, and nothing else.

    Its `pip` downloads nothing; to build packages with it, hatchling must be one of the others.
    """

    def __init__(self, folder: Path, wheel: Path, extras: Collection[str] = (), others: Collection[str] = ()) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        self.python = folder / "bin" / "python"
        (site_packages,) = folder.glob("lib/python*/site-packages")
        self.install(wheel)
        pip = folder / "bin" / "pip"
        settings = "PIP_NO_INDEX=1 PIP_NO_BUILD_ISOLATION=0 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1"
        pip.write_text(f'#!/bin/sh\n{settings} exec {sys.executable} -m pip --python {self.python} "$@"\n')
        pip.chmod(0o755)
        (linn,) = metadata.distributions(name="linn", path=[str(site_packages)])
        wanted = _wanted(linn, extras)
        for name in others:
            wanted |= {name: metadata.distribution(name), **_wanted(metadata.distribution(name), ())}
        for distribution in wanted.values():
            for top in {
                file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")
            }:
                link = site_packages / top
                if not link.exists():
                    link.symlink_to(Path(str(distribution.locate_file(top))))


def _wanted(first: metadata.Distribution, extras: Collection[str]) -> dict[str, metadata.Distribution]:
    """The requirements of a distribution with these extras, and theirs in turn, by name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(first, frozenset(extras))]
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
