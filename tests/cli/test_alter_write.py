"""`linn topics alter` on a topic that the file names: the warning, and --write, which changes the file as well."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from linn.testing.process import BrokerProcess

CONFIG = """\
# What this broker is for.
[broker]
name = "shop"   # said to clients

[topics.events]
kind = "stream"
retention = "14d"   # two weeks, said the auditors
# The end.

[topics.jobs]
lease = "5s"
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), CONFIG) as process:
        yield process


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "linn.toml"
    path.write_text(CONFIG)
    path.chmod(0o640)
    return path


def retention_of(quick, topic: str) -> str:
    return json.loads(quick("topics", "describe", topic, "--json").stdout)["settings"]["retention"]


def test_a_key_of_the_file_is_warned_of_with_its_line_and_others_are_not(quick) -> None:
    done = quick("topics", "alter", "events", "retention=20d", "retention_bytes=1GiB")
    assert done.stdout == "changed retention, retention_bytes\n"
    (line,) = done.stderr.splitlines()
    assert 'sets retention = "14d": it counts at the next start; `linn topics alter --write ' in line
    done = quick("topics", "alter", "events", "retention=21d", "--json")
    (warning,) = json.loads(done.stdout)["warnings"]
    assert (warning["key"], f"{warning['file']}:{warning['line']} sets" in warning["text"]) == ("retention", True)
    assert quick("topics", "alter", "events", "retention=14d").stderr == "", "that is what the file says"


def test_write_changes_the_key_alone_and_keeps_comments_mode_and_links(quick, file: Path) -> None:
    link = file.with_name("link.toml")
    link.symlink_to(file)
    if os.geteuid() == 0:
        os.chown(file, 1234, 1235)
    owner = file.stat().st_uid, file.stat().st_gid
    done = quick("topics", "alter", "events", "retention=30d", "bytes_max=1GiB", "--write", str(link))
    assert (done.stdout, done.stderr) == (f"changed retention, bytes_max; wrote {link}\n", "")
    now = file.read_text()
    assert '\nretention = "30d"   # two weeks, said the auditors\n' in now
    assert '\nbytes_max = "1GiB"\n' in now
    kept = [line for line in now.splitlines() if not line.startswith(("retention", "bytes_max"))]
    before = [line for line in CONFIG.splitlines() if not line.startswith("retention")]
    assert [line for line in kept if line] == [line for line in before if line]
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert (file.stat().st_uid, file.stat().st_gid) == owner
    assert link.is_symlink()
    assert sorted(os.listdir(file.parent)) == ["link.toml", "linn.toml"]
    assert quick("check", str(file)).returncode == 0
    assert retention_of(quick, "events") == "30d"


def test_write_adds_a_topic_that_was_made_live(quick, file: Path) -> None:
    quick("topics", "create", "live.one", "kind=stream")
    assert quick("topics", "alter", "live.one", "retention=3d", "--write", str(file)).returncode == 0
    assert '[topics."live.one"]\nretention = "3d"\n' in file.read_text()
    assert file.read_text().startswith(CONFIG)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "can't be read: No such file"),
        ("[topics", "not TOML"),
        ("[topics.events]\nretention = 5\n", "config.invalid"),
        ("[topics.events]\nretenton = '5d'\n", "config.unknown_key"),
        (CONFIG.replace("shop", "other"), 'is of the broker "other"'),
    ],
)
def test_a_file_that_is_none_or_anothers_changes_nothing(
    quick, line_of, tmp_path: Path, content: str | None, said: str
) -> None:
    path, before = tmp_path / "x.toml", retention_of(quick, "events")
    if content is not None:
        path.write_text(content)
    key = "overflow=reject" if content and "retention = 5" in content else "retention=77d"
    done = quick("topics", "alter", "events", key, "--write", str(path))
    assert done.returncode == 3
    assert said in line_of(done.stderr)
    assert retention_of(quick, "events") == before
    assert os.listdir(tmp_path) == ([] if content is None else ["x.toml"])
    assert content is None or path.read_text() == content


def test_changes_refused_by_the_broker_are_not_written(quick, line_of, file: Path) -> None:
    done = quick("topics", "alter", "jobs", "storage=dram", "--write", str(file))
    assert done.returncode == 3
    assert "[config.not_live]" in line_of(done.stderr)
    assert file.read_text() == CONFIG
    assert os.listdir(file.parent) == ["linn.toml"]


def test_a_file_whose_folder_is_gone_before_the_broker_is_asked_changes_nothing(
    quick, line_of, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    before = retention_of(quick, "events")
    monkeypatch.setattr("tempfile.mkstemp", refuse)  # A read-only folder stops nobody who is root.
    done = quick("topics", "alter", "events", "retention=88d", "--write", str(file))
    assert done.returncode == 3
    assert "can't be written: Permission denied; nothing was changed" in line_of(done.stderr)
    assert retention_of(quick, "events") == before
    monkeypatch.undo()
    monkeypatch.setattr("pathlib.Path.replace", refuse)
    done = quick("topics", "alter", "events", "retention=88d", "--write", str(file))
    assert done.returncode == 3
    assert "the change is live only" in line_of(done.stderr)
    assert retention_of(quick, "events") == "88d"
    assert os.listdir(file.parent) == ["linn.toml"]
