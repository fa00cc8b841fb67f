from __future__ import annotations

import getpass
import runpy
import sys
from pathlib import Path

import pytest
from linn_htpasswd.password_file import PasswordFile, PasswordFileSettings, entries_of, line_of

import linn
from linn.api import AuthFailed, Credentials, Forbidden, RealEnv, StorageError
from linn.testing.authenticators import AuthenticatorConformance, AuthenticatorHarness
from linn.testing.plugin_broker import plugin_broker

ANN = Credentials("PLAIN", "ann", "opensesame")
LINES = [line_of("ann", "opensesame", b"a" * 16, "reader"), "", "# a comment", line_of("bob", "hunter2", b"b" * 16)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "htpasswd"
    path.touch(0o600)
    path.write_text("\n".join(LINES))
    return path


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


def of_file(path: Path) -> PasswordFile:
    return PasswordFile(PasswordFileSettings(str(path)), RealEnv())


class TestPasswordFile(AuthenticatorConformance):
    @pytest.fixture
    def harness(self, file: Path) -> AuthenticatorHarness:
        return AuthenticatorHarness(
            make=lambda: of_file(file),
            accepts={"ann": ANN, "bob": Credentials("PLAIN", "bob", "hunter2")},
            denies=[Credentials("PLAIN", "ann", "Opensesame"), Credentials("PLAIN", "", "opensesame")],
        )


async def test_roles_come_from_the_file_which_is_read_each_time(file: Path) -> None:
    authenticator = of_file(file)
    found = await authenticator.authenticate(ANN)
    assert found is not None
    assert found.roles == ("reader",)
    write(file, line_of("ann", "opensesame", b"c" * 16, "writer,reader"))
    found = await authenticator.authenticate(ANN)
    assert found is not None
    assert found.roles == ("writer", "reader")
    write(file, "")
    assert await authenticator.authenticate(ANN) is None


async def test_a_file_that_others_may_read_is_refused(file: Path) -> None:
    write(file, LINES[0], mode=0o640)
    with pytest.raises(StorageError, match="others may use it"):
        await of_file(file).authenticate(ANN)


@pytest.mark.parametrize("line", ["ann", "ann:opensesame:", "ann:md5$YQ==$YQ==:", "ann:scrypt$?$YQ==:"])
def test_a_line_that_is_none_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        entries_of(line)


async def test_a_broker_lets_in_who_has_a_password(tmp_path: Path, file: Path) -> None:
    toml = f"""
[broker]
data_dir = "{tmp_path}/data"
default_storage = "dram"
[listeners.local]
address = "unix:{tmp_path}/linn.sock"
login = "required"
methods = ["htpasswd"]
[authenticators.htpasswd]
file = "{file}"
[roles.reader]
"topic:orders" = ["consume"]
[topics.orders]
"""
    async with plugin_broker(RealEnv(), toml, "linn_htpasswd.plugin"):
        url = f"linn+unix://{tmp_path}/linn.sock"
        async with linn.connect(url, login=linn.Password("ann", "opensesame", plain=True)) as client:
            assert (await client.admin.whoami())["roles"] == ["reader"]
            async with client.consumer("orders"):
                pass
            with pytest.raises(Forbidden):
                async with client.producer("orders") as producer:
                    await producer.publish(b"a")
        with pytest.raises(AuthFailed):
            async with linn.connect(url, login=linn.Password("ann", "wrong", plain=True)):
                pass


def test_the_command_writes_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(getpass, "getpass", lambda: "opensesame")
    monkeypatch.setattr(sys, "argv", ["linn_htpasswd", "ann", "reader"])
    runpy.run_module("linn_htpasswd", run_name="__main__")
    ((user, entry),) = entries_of(capsys.readouterr().out).items()
    assert (user, entry.roles) == ("ann", ("reader",))
