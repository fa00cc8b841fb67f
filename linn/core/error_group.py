"""What is raised where several tasks failed together."""

from __future__ import annotations

from linn.core.errors import LinnError


def said_once(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error of a group, or the first of several of linn's own, as when two syncs fail; else the group."""
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
