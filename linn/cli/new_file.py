"""Files that commands write and never overwrite."""

from __future__ import annotations

from linn.core.errors.texts import one_line
from linn.core.errors.tree import ConfigExists, ConfigUnreadable


def write_new(file: str, text: str) -> None:
    """Write a file that must not exist yet. Raises ConfigExists, ConfigUnreadable."""
    try:
        with open(file, "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError as error:
        raise ConfigExists(f"{one_line(file)} exists already, and was not changed") from error
    except (OSError, ValueError) as error:
        raise ConfigUnreadable(f"{one_line(file)}: can't be written: {getattr(error, 'strerror', error)}") from error
