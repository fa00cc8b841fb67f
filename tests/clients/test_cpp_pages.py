"""The pages about the C++ client are correct: a project as on the page builds the program of the README.

The code blocks of the page compile, too.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from agents import CPP, CPP_BUILD, ROOT, Commands, check, run
from code_block import code_blocks
from spoken import create_topic
from trio import run as run_async

from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.timeout(1_200)  # A first build of the client is a part of it.

PAGE = ROOT / "docs" / "how-to" / "use-from-cpp.md"
DOCS_URL = "linn://127.0.0.1:5466"
IN_THE_TREE, INSTALLED = (
    "add_subdirectory(linn/clients/cpp) # or, where it is installed: ",
    "find_package(linn REQUIRED)",
)


PRELUDE = """
#include <iostream>
#include <optional>
#include <string_view>
#include <vector>
std::vector<std::string> lines;
bool process(std::string_view value);
void count(std::optional<std::string_view> key, std::int64_t timestamp_ms);
"""
"""Definitions that the page leaves to the reader."""


def block_of(page: Path, language: str) -> str:
    return next(block.text for block in code_blocks(page) if block.language == language)


def test_a_project_as_on_the_page_builds_and_runs_the_program_in_the_readme(
    command: Commands, broker: BrokerProcess, tmp_path: Path
) -> None:
    command("cpp")
    check(run(["cmake", "--install", str(CPP_BUILD), "--prefix", str(tmp_path / "installed")]))
    project = block_of(PAGE, "cmake")
    assert IN_THE_TREE + INSTALLED in project
    (tmp_path / "CMakeLists.txt").write_text(project.replace(IN_THE_TREE, ""), encoding="utf-8")
    program = block_of(CPP / "README.md", "cpp").replace(DOCS_URL, broker.url)
    (tmp_path / "main.cpp").write_text(program, encoding="utf-8")
    check(run(["cmake", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={tmp_path}/installed"], tmp_path))
    check(run(["cmake", "--build", "build"], tmp_path))
    run_async(create_topic, broker.url, "greetings")
    done = run([str(tmp_path / "build" / "billing")], tmp_path)
    check(done)
    assert done.stdout == "hello\n"


def test_the_pieces_on_the_page_are_one_program(tmp_path: Path) -> None:
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    pieces = [block.text for block in code_blocks(PAGE) if block.language == "cpp"]
    assert len(pieces) > 5
    includes = [line for piece in pieces for line in piece.splitlines() if line.startswith("#include ")]
    # Each in a scope inside of the one before: a name may be used again, and made again.
    bodies = [re.sub(r"^#include .*\n", "", piece, flags=re.MULTILINE) for piece in pieces]
    program = "\n".join(includes) + PRELUDE + "int main() {\n" + "{\n".join(bodies) + "}" * len(bodies) + "\n"
    (tmp_path / "main.cpp").write_text(program, encoding="utf-8")
    check(run(["c++", "-std=c++20", "-Wall", "-Werror", "-fsyntax-only", f"-I{CPP}/include", "main.cpp"], tmp_path))
