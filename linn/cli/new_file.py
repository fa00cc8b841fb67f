"""Files that commands write and never overwrite."""

from __future__ import annotations

import os

from linn.core.errors.texts import one_line
from linn.core.errors.tree import ConfigExists, ConfigUnreadable


def write_new(file: str, text: str, *, mode: int = 0o666) -> None:
    """Write a file that must not exist yet; the umask takes rights from its `mode`.

    Raises ConfigExists, ConfigUnreadable.
    """
    try:
        with open(file, "x", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, mode)) as out:
            out.write(text)
    except FileExistsError as error:
        raise ConfigExists(f"{one_line(file)} exists already, and was not changed") from error
    except (OSError, ValueError) as error:
        raise ConfigUnreadable(f"{one_line(file)}: can't be written: {getattr(error, 'strerror', error)}") from error
