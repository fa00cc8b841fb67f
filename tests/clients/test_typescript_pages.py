"""The pages about the TypeScript client are correct: programs run, and examples compile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from agents import ROOT, TYPESCRIPT, Commands, Said, check, run
from spoken import create_topic
from trio import run as run_async

from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.timeout(1_200)  # A first build of the client is a part of it.

PAGE = ROOT / "docs" / "how-to" / "use-from-typescript.md"
DOCS_URL = "linn://127.0.0.1:5466"
PRELUDE = """
declare const values: string[];
declare const value: string;
declare function report(error: unknown): void;
declare function handle(message: object): Promise<void>;
declare function index(value: Uint8Array | null): void;
declare function later(): Promise<void>;
"""
"""Definitions that the page's examples leave to the reader."""


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```ts\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def built(command: Commands) -> Path:
    """A folder in which the client can be imported by its name. Skips where it can't be built."""
    command("typescript")
    return TYPESCRIPT / "dist"


def test_the_program_in_the_readme_runs(command: Commands, broker: BrokerProcess) -> None:
    program = built(command) / "readme.mjs"
    (block,) = blocks(TYPESCRIPT / "README.md")
    run_async(create_topic, broker.url, "greetings")
    program.write_text(block.replace(DOCS_URL, broker.url), encoding="utf-8")
    done = run(["node", str(program)], TYPESCRIPT)
    check(done)
    assert done.stdout == "hello\n"


def test_the_examples_on_the_page_are_typescript(command: Commands) -> None:
    folder = built(command)
    found = blocks(PAGE)
    assert len(found) > 6
    imports = [line for block in found for line in block.splitlines() if line.startswith("import ")]
    # Each in a scope inside of the one before: a name may be used again, and made again.
    bodies = [re.sub(r"^import .*\n", "", block, flags=re.MULTILINE) for block in found]
    text = "\n".join(dict.fromkeys(imports)) + PRELUDE + "{\n".join(bodies) + "}" * (len(bodies) - 1)
    (folder / "page.mts").write_text(text, encoding="utf-8")
    options: Said = {"--module": "nodenext", "--target": "es2022", "--lib": "es2023", "--types": "node"}
    arguments = [part for option in options.items() for part in option]
    check(run(["npx", "tsc", "--noEmit", "--strict", "--skipLibCheck", *arguments, "dist/page.mts"], TYPESCRIPT))
