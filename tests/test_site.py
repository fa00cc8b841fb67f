"""The documentation as a site: every page is in it, links and pictures lead somewhere, nothing comes from outside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_builds_strictly_with_a_page_per_page(site: Path) -> None:
    pages = [page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")]
    missing = [page for page in pages if page.name != "index" and not (site / page / "index.html").is_file()]
    assert pages
    assert missing == []


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"""<(?:script|img|link|iframe)[^>]*(?:src|href)=["']?(https?:[^"' >]+)""")
    found = {match for page in site.rglob("*.html") for match in loads.findall(page.read_text(encoding="utf-8"))}
    assert found == set()


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_pictures_are_whole_have_a_title_and_are_shown(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert any(f"pictures/{picture.name}" in page.read_text(encoding="utf-8") for page in pages)
