"""A hook of mkdocs: links from a page to files of the repository become their names on the site, which has no copy.

Law: such a link is not an excuse: a build fails where the file does not exist.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>(?:\.\./)+[^)#\s]*)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replace links that lead out of the documentation. Raises PluginError where one leads nowhere."""
    documents = Path(config["docs_dir"]).resolve()
    folder = documents / Path(page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / link["target"]))
        if target.is_relative_to(documents):
            return link[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {link['target']}, which does not exist")
        name = target.relative_to(documents.parent).as_posix()
        return link["text"] if link["text"].strip("`") in name else f"{link['text']} (`{name}`)"

    return _LINK.sub(named, markdown)
