"""What is raised where several tasks failed together."""

from __future__ import annotations

from typing import NoReturn

from linn.core.errors.tree import LinnError


def raise_once(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """Raise the one error of a group, or the first of several of linn's own, as when two syncs fail; else the group."""
    error = _said_once(group)
    try:
        raise error
    finally:
        # What it came up in is the group, which knows it: they would be kept until the collector looks.
        error.__context__ = None
        del error, group


def _said_once(group: BaseExceptionGroup[BaseException]) -> BaseException:
    leaves: list[BaseException] = []
    groups: list[BaseExceptionGroup[BaseException]] = [group]
    for each in groups:
        for error in each.exceptions:
            if isinstance(error, BaseExceptionGroup):
                groups.append(error)
            else:
                leaves.append(error)
    if len(leaves) == 1 or all(isinstance(error, LinnError) for error in leaves):
        return leaves[0]
    return group
