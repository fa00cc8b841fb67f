"""Arguments that the command line accepts and refuses, without a broker."""

import pytest
import typer
from typer.testing import CliRunner

from linn import __version__
from linn.cli.app import app
from linn.cli.typed_value import headers, labels, named_values, typed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("-4.5", -4.5),
        ("true", True),
        ('"4"', "4"),
        ("14d", "14d"),
        ("nan", "nan"),
        ("2013-01-01", "2013-01-01"),
        ("99999999999999999999", "99999999999999999999"),
        ("1\nb = 2", "1\nb = 2"),
        ('[{exchange = "e", key = "a.#"}]', [{"exchange": "e", "key": "a.#"}]),
        ("", ""),
    ],
)
def test_values_have_the_types_of_toml(text: str, value: object) -> None:
    found = typed(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("pairs", [["n"], ["=4"], ["a=1", "a=2"]])
def test_pairs_need_a_name_of_their_own(pairs: list[str]) -> None:
    with pytest.raises(typer.BadParameter):
        named_values(pairs, "--label")


def test_labels_are_scalars_and_headers_are_bytes_in_order() -> None:
    with pytest.raises(typer.BadParameter):
        labels(["a=[1]"])
    assert headers(["a=1", "a=é=2"]) == [("a", b"1"), ("a", "é=2".encode())]


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish"],
        ["consume"],
        ["consume", "t", "--format", "xml"],
        ["consume", "t", "--format", "{nothing}"],
        ["consume", "t", "--format", "{"],
        ["consume", "t", "--since", "-1"],
        ["consume", "t", "--since", "yesterday"],
        ["consume", "t", "--since", "99999999999999999999"],
        ["consume", "t", "--since", "999999999w"],
        ["consume", "t", "--count", "0"],
        ["browse", "t", "--partition", "-1"],
        ["publish", "t", "--input", "xml"],
        ["publish", "t", "value", "--input", "json"],
        ["publish", "t", "--rate", "fast"],
        ["publish", "t", "--rate", "0"],
        ["publish", "t", "--ttl", "soon"],
        ["publish", "t", "--ttl", "0s"],
        ["publish", "t", "--ttl", "-1s"],
        ["publish", "t", "--ttl", "50d"],
        ["publish", "t", "--delay", "soon"],
        ["publish", "t", "--delay", "50d"],
        ["publish", "t", "--at", "tomorrow"],
        ["publish", "t", "--at", "1969-12-31T12:00Z"],
        ["publish", "t", "--at", "2030-01-31", "--delay", "1s"],
        ["publish", "t", "--file", "no-such-file"],
        ["init", "--kind", "heap"],
        ["groups", "reset", "g"],
        ["groups", "reset", "g", "--to", "nowhere", "--yes"],
        ["bindings", "create", "x"],
        ["bench", "soak", "--duration", "long"],
        ["bench", "soak", "--duration", "0s"],
        ["bench", "soak", "--duration", "0s", "--producers", "2"],
        ["bench", "soak", "--setting", "kind=stream"],
        ["bench", "latency", "--size", "3"],
        ["completion", "tcsh"],
        ["serve", "--log-level", "loud"],
        ["topics", "alter", "t"],
        ["topics", "create", "t", "kind"],
        ["topics", "--json", "list"],
        ["demo", "--flights", "3"],
        ["brew"],
    ],
)
def test_a_wrong_command_line_ends_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (["--producers", "2", "--consumers", "2"], "--consumers"),
        (["--linger", "100ms"], "--linger"),
        (["--processes", "2"], "--processes"),
    ],
)
def test_an_option_of_the_other_soak_is_refused_by_name(options: list[str], refused: str) -> None:
    done = CliRunner().invoke(app, ["bench", "soak", *options])
    assert done.exit_code == 2
    assert f"Invalid value for {refused}: " in done.stderr


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"linn {__version__}\n"
