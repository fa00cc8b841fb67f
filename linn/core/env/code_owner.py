"""Attribution of code: finds the plugin in a stack or a traceback, so that a failure can be reported by name.

Laws: the innermost frame that a plugin owns decides; linn's core belongs to no plugin. A plugin owns the modules of its
registered objects and the packages around them, unless another plugin has modules there as well.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from types import FrameType
from typing import NamedTuple

from linn.core.errors.group import leaves_of

_CORE = "linn.core"


class Culprit(NamedTuple):
    """A place in a plugin's code."""

    plugin: str
    """The plugin's name in messages: `plugin "tape" (linn-paper-tape 1.2)`."""
    place: str
    """The function and line: `match (by_length.py:33)`."""

    def __str__(self) -> str:
        return f"{self.plugin} in {self.place}"


class CodeOwners:
    """Plugins by the names of their modules and packages."""

    def __init__(self, modules: Mapping[str, Iterable[str]]) -> None:
        """`modules`: the modules of each plugin, by the plugin's name in reports."""
        self._by_module: dict[str, str] = {}
        self._by_package: dict[str, str] = {}
        shared: dict[str, None] = {}
        for plugin, names in modules.items():
            for name in names:
                package = name.rpartition(".")[0]
                if _is_core(name):
                    continue
                self._by_module.setdefault(name, plugin)
                if package and self._by_package.setdefault(package, plugin) != plugin:
                    shared[package] = None
        for package in shared:
            del self._by_package[package]

    def owner_of(self, module: str) -> str | None:
        """The plugin that owns a module; None if no plugin does."""
        found = self._by_module.get(module)
        while found is None and module and not _is_core(module):
            found = self._by_package.get(module)
            module = module.rpartition(".")[0]
        return found

    def in_stack(self, innermost: FrameType | None) -> Culprit | None:
        """Find the running plugin, given the innermost frame of its thread."""
        frame = innermost
        while frame is not None:
            plugin = self.owner_of(str(frame.f_globals.get("__name__", "")))
            if plugin is not None:
                return Culprit(plugin, place_of(frame, frame.f_lineno))
            frame = frame.f_back
        return None

    def behind(self, error: BaseException) -> Culprit | None:
        """Find the plugin whose code raised an error; for a group, the plugin of the first error that has one."""
        for leaf in leaves_of(error):
            for frame, line in reversed(list(traceback.walk_tb(leaf.__traceback__))):
                plugin = self.owner_of(str(frame.f_globals.get("__name__", "")))
                if plugin is not None:
                    return Culprit(plugin, place_of(frame, line))
        return None


def place_of(frame: FrameType, line: int) -> str:
    """Function, file and line, as shown to people."""
    return f"{frame.f_code.co_qualname} ({PurePath(frame.f_code.co_filename).name}:{line})"


def _is_core(module: str) -> bool:
    return module == _CORE or module.startswith(_CORE + ".")
