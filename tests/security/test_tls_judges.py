"""TLS of a real broker, judged by others: a scan by sslyze, and OpenSSL's own client with certificates of all kinds.

sslyze needs an older `cryptography` than linn's tests do, so that it gets a virtual environment of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tls_world import HOST, OURS, authority, pair, tls_table

from linn.cli.new_certificate import new_certificate
from linn.testing.process import BrokerProcess

SCAN = Path(__file__).with_name("sslyze_scan.py")
LISTENER = '[listeners.n]\naddress = "127.0.0.1:0"\ntls = "edge"\n'
OF_1_3 = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"]
OF_1_2 = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
]


@pytest.fixture(scope="module")
def sslyze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with sslyze."""
    folder = tmp_path_factory.mktemp("sslyze")
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "sslyze>=6.3,<7"]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        pytest.skip(f"sslyze can't be installed: {done.stderr.strip().splitlines()[-1:]}")
    return python


def scanned(sslyze: Path, broker: BrokerProcess, ca: Path) -> dict[str, Any]:
    host, _, port = broker.address.rpartition(":")
    # sslyze's own lists of authorities have certificates that its library warns of.
    command = [str(sslyze), "-W", "ignore", str(SCAN), host, port, str(ca)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def own_certificate(folder: Path, more: str) -> str:
    """The table of a certificate as `linn init --secure` makes it."""
    made = new_certificate([HOST, "localhost"])
    (folder / "key.pem").touch(0o600)
    for name, text in (("ca.pem", made.authority), ("cert.pem", made.certificate), ("key.pem", made.key)):
        (folder / name).write_text(text)
    return f'[tls.edge]\ncertificate = "{folder}/cert.pem"\nkey = "{folder}/key.pem"\n{more}\n'


@pytest.mark.parametrize("versions", ["1.3", "1.2"])
def test_a_scan_finds_only_what_is_promised(versions: str, sslyze: Path, tmp_path: Path) -> None:
    table = own_certificate(tmp_path, f'versions = "{versions}"')
    with BrokerProcess(tmp_path, table + LISTENER, listen=()) as broker:
        found = scanned(sslyze, broker, tmp_path / "ca.pem")
        assert broker.stop() == 0
        assert "Traceback" not in broker.log_text()
    assert {version: sorted(names) for version, names in found.pop("ciphers").items()} == {
        "ssl_3_0": [],
        "tls_1_0": [],
        "tls_1_1": [],
        "tls_1_2": OF_1_2 if versions == "1.2" else [],
        "tls_1_3": OF_1_3,
    }
    ids, tickets = found.pop("resumption").values()
    assert tickets == ("NOT_SUPPORTED" if versions == "1.2" else "SERVER_IS_TLS_1_3_ONLY")
    assert (ids == "SERVER_IS_TLS_1_3_ONLY") is (versions == "1.3")  # Python can't turn sessions of 1.2 off.
    assert found == {
        "compression": False,
        "early data": False,
        "renegotiation": False,
        "heartbleed": False,
        "ccs": False,
        "robot": "NOT_VULNERABLE_RSA_NOT_SUPPORTED",
        "certificate": ["valid"],
    }


# --- OpenSSL's client ---


def s_client(broker: BrokerProcess, folder: Path, *options: str) -> str:
    """Connect by `openssl s_client`, send no hello, and return all that it prints."""
    command = ["openssl", "s_client", "-connect", broker.address, "-CAfile", str(folder / "ca.pem"), "-quiet", *options]
    done = subprocess.run(command, input=b"x" * 64, capture_output=True, check=False, timeout=60)
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def shown(folder: Path, *names: str, by: str = OURS, not_after: datetime | None = None) -> list[str]:
    """The options with which OpenSSL shows a certificate."""
    certificate, key = pair(*names, by=by, not_after=not_after)
    (folder / "shown.pem").write_bytes(certificate)
    (folder / "shown.key").write_bytes(key)
    return ["-cert", str(folder / "shown.pem"), "-key", str(folder / "shown.key")]


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Path]]:
    folder = tmp_path_factory.mktemp("mutual")
    ask = f'client_ca = "{folder}/ca.pem"\nclient_certificate = "required"'
    with BrokerProcess(folder, tls_table(folder, ask) + LISTENER, listen=()) as broker:
        yield broker, folder


EXPIRED = datetime.now(UTC) - timedelta(days=1)


@pytest.mark.parametrize(
    ("names", "options", "alert"),
    [
        ((), {}, "certificate required"),
        (("ann.example",), {"by": "strangers"}, "unknown ca"),
        (("ann.example",), {"not_after": EXPIRED}, "certificate expired"),
        (("ann.example",), {}, ""),
    ],
    ids=["none", "of another authority", "expired", "right"],
)
def test_a_listener_that_requires_certificates_refuses_others(
    mutual: tuple[BrokerProcess, Path],
    tmp_path: Path,
    names: tuple[str, ...],
    options: dict[str, Any],
    alert: str,
) -> None:
    broker, folder = mutual
    said = s_client(broker, folder, *(shown(tmp_path, *names, **options) if names else []))
    assert ("alert" in said) is bool(alert), said
    assert alert in said
    assert ("protocol." in said) is not bool(alert), "only a client that got in is told its fault"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["-verify_ip", HOST], ""),
        (["-verify_ip", "127.0.0.2"], "IP address mismatch"),
        (["-verify_hostname", "broker.example"], "hostname mismatch"),
    ],
)
def test_openssl_takes_the_broker_for_its_names_and_no_others(options: list[str], code: str, tmp_path: Path) -> None:
    table = own_certificate(tmp_path, "")
    with BrokerProcess(tmp_path, table + LISTENER, listen=()) as broker:
        said = s_client(broker, tmp_path, "-verify_return_error", "-x509_strict", *options)
        assert ("verify error" in said, code in said) == (bool(code), True), said
        (tmp_path / "ca.pem").write_bytes(authority("strangers").cert_pem.bytes())
        assert "verify error" in s_client(broker, tmp_path, "-verify_return_error")
