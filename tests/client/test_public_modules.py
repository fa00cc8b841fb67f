"""What `linn`, `linn.client`, `linn.sync` and `linn.errors` show, in an editor and to `dir`."""

from __future__ import annotations

import subprocess
import sys

import linn
import linn.cli.main  # Submodules that are loaded are not shown either.
from linn.core.errors import LinnError, all_errors, error_from_code
from linn.testing.process import BrokerNotReady


def test_dir_shows_the_public_names_only() -> None:
    assert dir(linn) == ["__version__", "client", "connect", "errors", "sync"]
    assert dir(linn.client) == sorted(linn.client.__all__)
    for name in dir(linn):
        assert getattr(linn, name) is not None
    assert dir(linn.sync) == sorted(linn.sync.__all__)
    assert dir(linn.errors) == sorted(linn.errors.__all__)


def test_linn_errors_has_every_error_of_linn() -> None:
    classes = {error for error in all_errors().values() if error.__module__ == "linn.errors"}
    assert LinnError in classes
    assert {error.__name__ for error in classes} == set(linn.errors.__all__)
    assert all(getattr(linn.errors, error.__name__) is error for error in classes)
    assert [error.__name__ for error in classes if error.__doc__ is None] == []


def test_an_error_of_a_program_is_shown_as_what_the_program_catches() -> None:
    assert repr(type(error_from_code("topic.unknown", "no such topic"))) == "<class 'linn.errors.TopicUnknown'>"
    assert BrokerNotReady.__module__ == "linn.testing.process"


def test_importing_linn_loads_no_client() -> None:
    script = "import sys, linn; print([name for name in sys.modules if name.startswith(('linn.', 'anyio', 'trio'))])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
