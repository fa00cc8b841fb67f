"""The documentation as a site: every page is in it, links and pictures lead somewhere, nothing comes from outside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest
from code_block import code_blocks

ROOT = Path(__file__).parents[1]
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
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


def html_of(site: Path, page: Path) -> str:
    name = page.relative_to(ROOT / "docs").with_suffix("")
    folder = name.parent if name.name == "index" else name
    return (site / folder / "index.html").read_text(encoding="utf-8")


CODE = re.compile(r'<div class="[^"]*highlight[^"]*"[^>]*>(.*?)</code></pre></div>', re.DOTALL)
TITLE = re.compile(r'<span class="filename">(.*?)</span>')


def text_of(markup: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", markup))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT / "docs").as_posix())
def test_each_code_block_of_a_page_is_one_on_the_site(site: Path, page: Path) -> None:
    html = html_of(site, page)
    # A block that is only indented has no numbered lines.
    fenced = [block for block in CODE.findall(html) if 'id="__codelineno-' in block]
    shown = [(TITLE.search(block), text_of(TITLE.sub("", block)).rstrip()) for block in fenced]
    assert [(unescape(title[1]) if title else "", text) for title, text in shown] == [
        (block.title, block.text.rstrip()) for block in code_blocks(page)
    ]
    assert "```" not in html
    assert len(re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)) == 2 * len(shown)


def test_the_copy_button_copies_commands_without_prompts_and_output(site: Path) -> None:
    html = html_of(site, ROOT / "docs" / "tutorial" / "first-five-minutes.md")
    copied = [unescape(text) for text in re.findall(r'data-copy="([^"]*)"', html)]
    assert "linn init\nlinn check linn.toml" in copied
    assert not [text for text in copied if "$ " in text or "wrote linn.toml" in text]
    sessions = [
        unescape(text)
        for page in PAGES
        for text in re.findall(
            r'<div class="highlight"( data-copy="[^"]*")?><pre>(?:(?!</pre>).)*class="gp"',
            html_of(site, page),
            re.DOTALL,
        )
    ]
    assert sessions
    assert all(sessions)


def test_the_copy_button_of_the_theme_reads_data_copy(site: Path) -> None:
    (script,) = (site / "assets" / "javascripts").glob("bundle.*.min.js")
    assert '.getAttribute("data-copy")' in script.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT / "docs").as_posix())
def test_code_within_text_breaks_at_its_spaces_only(site: Path, page: Path) -> None:
    for code in re.findall(r"(?<!<span></span>)<code>(.*?)</code>", html_of(site, page), re.DOTALL):
        assert re.fullmatch(r'(<span class="word">[^<\s]+</span>\s*)*', code), code


def test_a_table_that_is_too_wide_for_the_page_scrolls(site: Path) -> None:
    """The theme has a rule for tables without a class, and no table of a page has one."""
    (style,) = (site / "assets" / "stylesheets").glob("main.*.min.css")
    (rule, *_) = re.findall(r"\.md-typeset table:not\(\[class\]\)\{([^}]*)\}", style.read_text(encoding="utf-8"))
    assert {"max-width:100%", "overflow:auto"} <= {*rule.split(";")}
    tables = [table for page in PAGES for table in re.findall(r"<table[^>]*>", html_of(site, page))]
    assert len(tables) > 20
    assert {table for table in tables if "class" in table} == set()


CHARACTER = {"small": 6.0, "title": 7.8}
"""Width of one character of these classes, on average, in the units of the pictures."""
SVG = "{http://www.w3.org/2000/svg}"


def lines_of(path: str) -> Iterator[tuple[float, float, float, float]]:
    """(left, top, right, bottom) of the lines of a path that goes across and down."""
    x = y = 0.0
    for command, numbers in re.findall(r"([MHV])\s*([-\d. ]+)", path):
        place = [float(number) for number in numbers.split()]
        to_x = x if command == "V" else place[0]
        to_y = y if command == "H" else place[-1]
        if command != "M":
            yield min(x, to_x), min(y, to_y), max(x, to_x), max(y, to_y)
        x, y = to_x, to_y


@pytest.mark.parametrize("picture", ["layers.svg", "main-path.svg"])
def test_no_arrow_of_a_picture_crosses_a_text(picture: str) -> None:
    root = ElementTree.parse(ROOT / "docs" / "pictures" / picture).getroot()
    lines = [line for way in root.iter(f"{SVG}path") for line in lines_of(way.get("d", "")) if way.get("class")]
    assert lines
    crossed = []
    for text in root.iter(f"{SVG}text"):
        words = text.text or ""
        width = CHARACTER[text.get("class", "title")] * len(words)
        left = (
            float(text.get("x", 0)) - {"start": 0, "middle": width / 2, "end": width}[text.get("text-anchor", "start")]
        )
        bottom = float(text.get("y", 0))
        for x, y, to_x, to_y in lines:
            if x < left + width and to_x > left and y < bottom and to_y > bottom - 9:
                crossed.append(words)
    assert crossed == []
