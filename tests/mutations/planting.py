"""The seam: an import hook that compiles one module of linn from changed source, in a process of its own.

Nothing in linn knows of it, and no file is changed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from mutation import Mutation


class PlantedLoader(SourceFileLoader):
    """Loads a module with a bug, and neither reads nor writes its bytecode."""

    def __init__(self, path: str, mutation: Mutation) -> None:
        super().__init__(mutation.module, path)
        self._mutation = mutation

    def get_code(self, fullname: str) -> CodeType:
        source = self._mutation.plant(self.get_data(self.path).decode())
        return compile(source, self.path, "exec", dont_inherit=True)


class PlantedFinder(MetaPathFinder):
    """Finds one module before everybody else does."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._mutation.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None, f"there is no module {fullname}"
        assert spec.origin is not None
        spec.loader = PlantedLoader(spec.origin, self._mutation)
        return spec


def plant(mutation: Mutation) -> None:
    """Make later imports bring the bug; linn must not have been imported yet."""
    there = sorted(name for name in sys.modules if name.partition(".")[0] == "linn")
    assert not there, f"too late to plant {mutation.name}: {there[:3]} are imported"
    sys.meta_path.insert(0, PlantedFinder(mutation))


def check_planted(mutation: Mutation) -> None:
    """Assert that the module with the bug is what will run, also where it is a plugin's and imported late."""
    module = importlib.import_module(mutation.module)
    assert isinstance(module.__loader__, PlantedLoader), f"{mutation.module} was imported without its bug"
