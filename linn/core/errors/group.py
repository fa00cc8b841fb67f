"""Errors of several tasks that failed together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from linn.core.errors.tree import LinnError


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group and of its nested groups; any other error itself."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves_of(part)
    else:
        yield error


def raise_once(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """Raise a group's only error, or the first if all are linn's own (as when two syncs fail); otherwise the group."""
    error = _unwrapped(group)
    try:
        raise error
    finally:
        # The error's context is the group, which refers to the error: a cycle that would live until the collector runs.
        error.__context__ = None
        del error, group


def _unwrapped(group: BaseExceptionGroup[BaseException]) -> BaseException:
    leaves = list(leaves_of(group))
    if len(leaves) == 1 or all(isinstance(error, LinnError) for error in leaves):
        return leaves[0]
    return group
