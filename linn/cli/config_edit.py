"""Edit of a configuration file for `linn topics alter --write`; comments and order are kept.

Laws: the file is replaced whole or not at all; the new file is written and checked before the broker is asked, and
renamed once the broker has agreed; only the given keys change.

Separate from the command because tomlkit and all plugins are loaded only for --write.
"""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from linn.core.config.config import Config, load_config, plugin_settings, read_toml
from linn.core.config.dotted_keys import key_path, put
from linn.core.config.toml_source import TomlSource
from linn.core.errors.texts import one_line
from linn.core.errors.tree import ConfigError
from linn.core.plugins.manager import PluginManager, installed


class ConfigEdit:
    """Edited configuration file that has not replaced the original yet."""

    def __init__(self, file: str, topic: str, settings: Mapping[str, Any]) -> None:
        """Raise ConfigError or PluginError where the file can't be read, or is invalid after the change."""
        self._file = file
        source = read_toml(file)
        text = _changed(source, topic, settings)
        changed = TomlSource(text, source.file)
        expected = copy.deepcopy(source.data)
        table = expected.setdefault("topics", {}).setdefault(topic, {})
        for key, value in settings.items():
            put(table, key_path(key), value)
        if changed.data != expected:
            raise ConfigError(f"{source.file}: topics.{topic} can't be changed without touching more: edit it by hand")
        self._content = text.encode()
        self.config: Config = load_config(changed, PluginManager(plugin_settings(changed), installed()))

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """Write the new file beside the original, and replace that if the block succeeds.

        Raises ConfigError: the file can't be written; the text says so where the block has succeeded.
        """
        target = Path(os.path.realpath(self._file))
        scratch = self._scratch(target)
        try:
            yield
            try:
                scratch.replace(target)
                _sync_folder(target.parent)
            except OSError as error:
                done = "the broker has changed, the file perhaps not: the change is live only"
                raise ConfigError(f"{one_line(self._file)}: can't be replaced: {error.strerror}; {done}") from error
        finally:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)

    def _scratch(self, target: Path) -> Path:
        """Write and sync a file beside the target, with its owner and mode. Raises ConfigError."""
        path: str | None = None
        try:
            descriptor, path = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
            with os.fdopen(descriptor, "wb") as file:
                file.write(self._content)
                old = target.stat()
                os.fchown(file.fileno(), old.st_uid, old.st_gid)  # Else the broker may not be able to read it.
                os.fchmod(file.fileno(), old.st_mode & 0o7777)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if path is not None:
                Path(path).unlink(missing_ok=True)
            shown = one_line(self._file)
            raise ConfigError(f"{shown}: can't be written: {error.strerror}; nothing was changed") from error
        return Path(path)


def _changed(source: TomlSource, topic: str, settings: Mapping[str, Any]) -> str:
    """Return the text with these settings of a topic. Raises ConfigError where tomlkit can't edit it."""
    try:
        document = tomlkit.parse(source.text)
        topics = document.setdefault("topics", tomlkit.table(is_super_table=True))
        if topic not in topics:
            topics.add(topic, tomlkit.table())
        table = topics[topic]
        for key, value in settings.items():
            if not put(table, key_path(key), value):
                raise ConfigError(f"{source.file}: topics.{topic} has no table for {key}")
        return tomlkit.dumps(document)
    except (TOMLKitError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{source.file}: topics.{topic} can't be changed: {error}: edit it by hand") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
