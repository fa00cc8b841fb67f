"""docs/reference/cli.md is complete, because it is made from the commands."""

from pathlib import Path

from reference_pages.commands import commands, page

from linn.cli.exit_code import MEANINGS, ExitCode

PAGE = Path(__file__).parents[2] / "docs/reference/cli.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: python tests/reference_pages cli > docs/reference/cli.md"


def test_every_command_option_and_exit_code_is_documented() -> None:
    text = PAGE.read_text()
    paths = [path for path, _ in commands()]
    assert {"linn serve", "linn check", "linn topics create", "linn bench consume", "linn demo"} <= set(paths)
    for path, command in commands():
        assert f"\n## {path}\n" in text
        assert command.help
        for parameter in command.params:
            assert parameter.help, f"{path}: {parameter.name} has no help"
            assert all(name in text for name in parameter.opts if name.startswith("-"))
    for code in ExitCode:
        assert f"\n| {int(code)} | {MEANINGS[code]} |\n" in text
