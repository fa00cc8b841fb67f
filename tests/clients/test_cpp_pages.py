"""What the pages about the C++ client show is true: a project as on the page builds the program of the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from agents import CPP, CPP_BUILD, ROOT, Commands, check, run
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


def block_of(page: Path, language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no {language}"
    return found[1]


def test_a_project_as_on_the_page_builds_and_runs_the_program_in_the_readme(
    command: Commands, broker: BrokerProcess, tmp_path: Path
) -> None:
    command("cpp")
    check(run(["cmake", "--install", str(CPP_BUILD), "--prefix", str(tmp_path / "installed")]))
    project = block_of(PAGE, "cmake")
    assert IN_THE_TREE + INSTALLED in project
    project = "cmake_minimum_required(VERSION 3.20)\n" + project.replace(IN_THE_TREE, "")
    (tmp_path / "CMakeLists.txt").write_text(project, encoding="utf-8")
    program = block_of(CPP / "README.md", "cpp").replace(DOCS_URL, broker.url)
    (tmp_path / "main.cpp").write_text(program, encoding="utf-8")
    check(run(["cmake", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={tmp_path}/installed"], tmp_path))
    check(run(["cmake", "--build", "build"], tmp_path))
    run_async(create_topic, broker.url, "greetings")
    done = run([str(tmp_path / "build" / "billing")], tmp_path)
    check(done)
    assert done.stdout == "hello\n"
