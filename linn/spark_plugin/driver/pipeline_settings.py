"""Options of the source by topic, names of views, and the transform of a pipeline. None of it needs Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from linn.spark_plugin.errors import PipelineInvalid
from linn.spark_plugin.spec import PipelineSpec

_BY_TOPIC = ("startingoffsets", "startingoffsetsbytimestamp")
"""Options of the source whose JSON has an entry for each topic."""


def source_options(pipeline: PipelineSpec, topics: tuple[str, ...]) -> dict[str, str]:
    """Return the pipeline's options of the source for some of its topics.

    Raises PipelineInvalid: an option by topic is not JSON, or does not name exactly the pipeline's topics.
    """
    options = {}
    for name, value in pipeline.source_options.items():
        if name.lower() in _BY_TOPIC and value.lstrip().startswith("{"):
            try:
                found = json.loads(value)
            except ValueError as error:
                raise PipelineInvalid(f"{name} is not JSON: {value[:60]!r}") from error
            if {*found} != {*pipeline.topics}:
                raise PipelineInvalid(
                    f"{name} names {', '.join(sorted(found))}, and the pipeline reads {', '.join(pipeline.topics)}: "
                    "give each topic its own; as an offset, -2 is the earliest and -1 the latest"
                )
            options[name] = json.dumps({topic: found[topic] for topic in topics})
        else:
            options[name] = value
    return options


def starts_at_latest(pipeline: PipelineSpec) -> bool:
    """Tell whether a new query begins at the end of a partition."""
    options = {name.lower(): value for name, value in pipeline.source_options.items()}
    if any(name.startswith("startingtimestamp") or name == "startingoffsetsbytimestamp" for name in options):
        return False
    start = options.get("startingoffsets", "latest").strip().lower()
    return start == "latest" or re.search(r":\s*-1\b", start) is not None


def view_name(topic: str) -> str:
    """Return the name of a topic's temporary view: characters that SQL does not take become "_"."""
    return re.sub(r"\W", "_", topic, flags=re.ASCII)


def imported_transform(name: str) -> Callable[[Any], Any]:
    """Import "module:function". Raises PipelineInvalid."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise PipelineInvalid(f'transform is "module:function", not {name!r}')
    try:
        found = import_module(module)
    except Exception as error:
        raise PipelineInvalid(f"the transform {name} can't be imported: {type(error).__name__}: {error}") from error
    function = getattr(found, attribute, None)
    if not callable(function):
        raise PipelineInvalid(f"the transform {name} can't be imported: {module} has no function {attribute}")
    result: Callable[[Any], Any] = function
    return result
