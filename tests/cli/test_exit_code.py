"""Exit codes for exceptions."""

import pytest

from linn.cli.exit_code import MEANINGS, ExitCode, boundary
from linn.core.errors.tree import (
    AddressInUse,
    ConfigUnknownKey,
    ConnectFailed,
    DiskFull,
    LinnError,
    PluginUnknown,
    ProtocolError,
    RequestUnknown,
    SyncFailed,
    TopicUnknown,
    VersionUnsupported,
)


def code_after(error: BaseException) -> object:
    with pytest.raises(SystemExit) as caught, boundary():
        raise error
    return caught.value.code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TopicUnknown("t"), 1),
        (ConfigUnknownKey("t"), 3),
        (PluginUnknown("t"), 3),
        (ConnectFailed("t"), 4),
        (VersionUnsupported("t"), 4),
        (ProtocolError("t"), 4),
        (RequestUnknown("t"), 1),
        (DiskFull("t"), 5),
        (AddressInUse("t"), 6),
    ],
)
def test_each_error_has_its_code_and_is_one_line(
    error: LinnError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_after(error) == code
    assert capsys.readouterr().err == f"linn: t [{error.code}]\n"


def test_a_failure_that_ends_a_broker_from_within_its_nursery(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_after(ExceptionGroup("", [ExceptionGroup("", [SyncFailed("can't sync")])])) == 5
    assert capsys.readouterr().err == "linn: can't sync [storage.sync_failed]\n"


def test_ctrl_c_outranks_the_errors_that_it_causes() -> None:
    assert code_after(BaseExceptionGroup("", [TopicUnknown("t"), KeyboardInterrupt()])) == 130


@pytest.mark.parametrize("bug", [ValueError("a bug"), ExceptionGroup("", [TopicUnknown("t"), ValueError("a bug")])])
def test_a_bug_passes_through(bug: Exception) -> None:
    with pytest.raises(type(bug)) as caught, boundary():
        raise bug
    assert caught.value is bug


def test_every_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(ExitCode)
