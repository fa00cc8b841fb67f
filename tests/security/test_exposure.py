"""Everything that a configuration leaves open is named by `linn check` and `linn doctor`, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from raw_client import configured
from tls_world import tls_table

from linn.cli.commands.check import _examine
from linn.cli.doctor.diagnosis import exposure_findings
from linn.cli.exposure import exposures
from linn.core.config.problem import dotted
from linn.core.security.sasl.scram import make_verifier

VERIFIER = make_verifier("opensesame", b"salt of 16 bytes", 4_096).text()
USERS = '[roles.r]\n"topic:t" = ["see"]\n[users.ann]\nroles = ["r"]\n'
ANONYMOUS = '[users.anonymous]\nroles = ["r"]\n'
OUT = '[listeners.out]\naddress = "0.0.0.0:5467"\n'
METRICS = OUT + 'protocol = "metrics"\n'
OPEN = 'plaintext = true\nlogin = "none"\n'
LOGIN = 'plaintext = true\nlogin = "required"\n'
INSIDE = 'tls = "x"\n'
TLS = '[tls.x]\ncertificate = "c"\nkey = "k"\n'
MUTUAL = TLS + 'client_ca = "ca"\nclient_certificate = "required"\n'
ALL = "anyone who reaches this address can read, change and delete everything: there is no login"
READ = "anyone who reaches this address may read the metrics, with names of topics and clients"
NO_TLS = "everybody between this address and its clients can read and change what is sent: there is no TLS"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", []),
        (USERS, []),
        (USERS + ANONYMOUS, []),
        (
            OUT + OPEN,
            [ALL],
        ),
        (
            OUT + INSIDE + 'login = "none"\n' + TLS,
            [ALL],
        ),
        (OUT + INSIDE + 'login = "none"\n' + MUTUAL, []),
        (OUT + LOGIN + USERS, [NO_TLS]),
        (OUT + INSIDE + 'login = "required"\n' + TLS + USERS, []),
        (OUT + OPEN + USERS, [NO_TLS]),
        (
            OUT + OPEN + USERS + ANONYMOUS,
            ['anyone who reaches this address has the roles of "anonymous": r: there'],
        ),
        (
            METRICS + OPEN,
            [READ],
        ),
        (METRICS + OPEN + USERS + ANONYMOUS, [READ]),
        (METRICS + OPEN + USERS, [NO_TLS]),
        (OUT + 'protocol = "peers"\nplaintext = true\n', [NO_TLS]),
        (OUT + 'protocol = "peers"\n' + INSIDE + TLS, []),
        (METRICS + INSIDE + 'login = "required"\n' + TLS + USERS, []),
    ],
)
def test_each_open_listener_is_named(text: str, said: list[str]) -> None:
    config, _ = configured(text)
    found = list(exposures(config))
    assert [exposure.text[: len(start)] for exposure, start in zip(found, said, strict=True)] == said
    assert {dotted(exposure.path) for exposure in found} <= {"listeners.out.address"}
    assert [finding.found for finding in exposure_findings(config)] == [
        f"listeners.out.address: {exposure.text}" for exposure in found
    ]


def test_pipelines_that_requests_may_start_are_named() -> None:
    config, _ = configured("[spark]\nlive = true\n")
    assert [dotted(exposure.path) for exposure in exposures(config)] == ["spark.live"]
    assert list(exposures(configured("[spark]\n")[0])) == []


def _found(file: Path) -> list[str]:
    _, problems = _examine(str(file))
    return [f"{problem.severity} {problem.key}: {problem.text}" for problem in problems.in_order()]


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o644])
def test_a_file_with_verifiers_is_its_owners_alone(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "my linn.toml"
    file.write_text(f'[users.ann]\nscram = "{VERIFIER}"\n[users.bob]\nscram = "{VERIFIER}"\n[topics.t]\n')
    file.chmod(mode)
    said = [problem for problem in _found(file) if "scram" in problem]
    if mode & 0o077:
        (text,) = said
        assert text.startswith(f"warning users.ann.scram: others may read this file (mode {mode:04o})")
        assert text.endswith(f"chmod 600 '{file}'")
        assert VERIFIER not in text
    else:
        assert said == []
    file.write_text("[topics.t]\n")
    assert not re.search("others may read", str(_found(file)))


@pytest.mark.parametrize("place", ["file", "env", "credential"])
def test_a_secret_that_is_not_there_is_found_before_the_start(place: str, tmp_path: Path) -> None:
    file = tmp_path / "linn.toml"
    file.write_text(
        f'[users.ann]\nscram = {{ {place} = "{tmp_path}x" }}\n'.replace("/", "/" if place == "file" else "_")
    )
    (said,) = [problem for problem in _found(file) if "scram" in problem]
    assert said.startswith("error users.ann.scram: " if place == "file" else "warning users.ann.scram: ")


def test_the_key_of_a_certificate_that_others_may_read_is_found(tmp_path: Path) -> None:
    file = tmp_path / "linn.toml"
    file.write_text(tls_table(tmp_path))
    (tmp_path / "key.pem").chmod(0o644)
    (said,) = [problem for problem in _found(file) if "tls" in problem]
    assert "others may use it (mode 0644)" in said
