"""TLS between processes: `linn serve`, its commands, a renewal under load, and OpenSSL's own client."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tls_world import HOST, OURS, authority, pair, tls_table, write_pair

import linn
from linn.testing.process import BrokerNotReady, BrokerProcess

LISTENER = '[listeners.n]\naddress = "127.0.0.1:0"\ntls = "edge"\n[topics.jobs]\nkind = "queue"\n'
WAIT_S = 30


def started(folder: Path, more: str = "") -> BrokerProcess:
    return BrokerProcess(folder, tls_table(folder, more) + LISTENER, listen=())


def linn_command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "linn", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env={**os.environ, **environment}
    )


def s_client(address: str, folder: Path, *options: str, input: bytes = b"") -> str:
    command = ["openssl", "s_client", "-connect", address, "-CAfile", str(folder / "ca.pem"), *options]
    done = subprocess.run(command, capture_output=True, input=input, check=False, timeout=60)
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def test_commands_trust_the_authority_that_they_are_given(tmp_path: Path) -> None:
    with started(tmp_path) as broker:
        (url,) = broker.urls
        assert url.startswith("linns://127.0.0.1:")
        ca = str(tmp_path / "ca.pem")
        assert linn_command("ping", "--url", url, "--ca", ca).returncode == 0
        listed = linn_command("topics", "--json", "--url", url, LINN_CA=ca)
        assert [topic["name"] for topic in json.loads(listed.stdout)] == ["jobs"]
        refused = linn_command("ping", "--url", url)
        assert (refused.returncode, refused.stdout) == (4, "")
        assert "tls.failed" in refused.stderr
        plain = linn_command("ping", "--url", url.replace("linns:", "linn:"))
        assert (plain.returncode, "linns://" in plain.stderr) == (4, True)


def test_a_command_shows_the_certificate_of_the_environment(tmp_path: Path) -> None:
    certificate, key = pair("operator")
    (tmp_path / "operator.pem").write_bytes(certificate + key)
    more = f'client_ca = "{tmp_path}/ca.pem"\nclient_certificate = "required"'
    with started(tmp_path, more) as broker:
        words = ("ping", "--url", broker.urls[0], "--ca", str(tmp_path / "ca.pem"))
        assert linn_command(*words).returncode == 4
        assert linn_command(*words, LINN_CERTIFICATE=str(tmp_path / "operator.pem")).returncode == 0


def test_serve_ends_with_3_for_files_of_no_use_and_for_open_addresses(tmp_path: Path) -> None:
    text = tls_table(tmp_path) + LISTENER
    (tmp_path / "key.pem").chmod(0o644)
    with pytest.raises(BrokerNotReady) as caught, BrokerProcess(tmp_path, text, listen=()):
        pass
    assert caught.value.returncode == 3
    assert "tls.edge.key: can't use" in caught.value.text
    with pytest.raises(BrokerNotReady) as caught, BrokerProcess(tmp_path, "", listen=("0.0.0.0:0",)):
        pass
    assert caught.value.returncode == 3
    assert "the listener has no TLS" in caught.value.text


def test_check_and_doctor_read_the_files(tmp_path: Path) -> None:
    (tmp_path / "linn.toml").write_text(tls_table(tmp_path) + LISTENER)
    assert linn_command("check", str(tmp_path / "linn.toml")).returncode == 0
    found = json.loads(linn_command("doctor", str(tmp_path / "linn.toml"), "--json").stdout)["findings"]
    (finding,) = [finding for finding in found if finding["name"] == "certificate edge"]
    assert finding["state"] == "ok"
    (tmp_path / "linn.toml").write_text(tls_table(tmp_path, f'client_ca = "{tmp_path}/ca.pem"') + LISTENER)
    checked = linn_command("check", str(tmp_path / "linn.toml"), "--json")
    warned = {(problem["severity"], problem["key"]) for problem in json.loads(checked.stdout)["problems"]}
    assert checked.returncode == 0
    assert ("warning", "tls.edge.client_ca") in warned
    write_pair(tmp_path, pair(HOST)[0], pair("another")[1])
    checked = linn_command("check", str(tmp_path / "linn.toml"), "--json")
    assert checked.returncode == 3
    (problem,) = [each for each in json.loads(checked.stdout)["problems"] if each["severity"] == "error"]
    assert (problem["key"], problem["code"], problem["line"]) == ("tls.edge.key", "config.tls", 3)
    found = json.loads(linn_command("doctor", str(tmp_path / "linn.toml"), "--json").stdout)["findings"]
    (finding,) = [finding for finding in found if finding["name"] == "certificate edge"]
    assert finding["state"] == "error"


# --- renewal ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def publishing(url: str, tls: linn.Tls, lost: list[str]) -> Iterator[list[int]]:
    """Publish over one connection until the block ends; the list grows with the confirmed messages."""
    confirmed: list[int] = []
    ends = threading.Event()

    def publish() -> None:
        with linn.sync.connect(url, tls=tls, retries_max=0) as client, client.producer("jobs") as producer:
            while not ends.is_set():
                producer.publish(b"x" * 1000)
                confirmed.append(1)

    def run() -> None:
        try:
            publish()
        except linn.errors.LinnError as error:
            lost.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield confirmed
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def wait_until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def shown_serial(address: tuple[str, int]) -> str:
    context = ssl.create_default_context(cadata=authority(OURS).cert_pem.bytes().decode())
    with socket.create_connection(address) as plain, context.wrap_socket(plain, server_hostname=HOST) as secure:
        return str((secure.getpeercert() or {})["serialNumber"])


def test_a_renewal_under_load_loses_no_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tls = linn.Tls(ca=tmp_path / "ca.pem")
    lost: list[str] = []
    with started(tmp_path) as broker:
        (url,) = broker.urls
        host, _, port = url.removeprefix("linns://").rpartition(":")
        with publishing(url, tls, lost) as confirmed:
            wait_until(lambda: confirmed)
            for number in range(3):
                before = shown_serial((host, int(port)))
                write_pair(tmp_path, *pair(HOST, f"renewal-{number}"))
                broker.signal(signal.SIGHUP)
                wait_until(lambda before=before: shown_serial((host, int(port))) != before)
                (tmp_path / "cert.pem").write_bytes(b"half of it")
                broker.signal(signal.SIGHUP)
                wait_until(lambda number=number: broker.log_text().count("the certificate in use stays") > number)
                count = len(confirmed)
                wait_until(lambda count=count: len(confirmed) > count + 20)
        assert lost == []
        assert shown_serial((host, int(port)))
    assert [record for record in caplog.records if "connecting again" in record.getMessage()] == []


# --- another implementation -------------------------------------------------------------------------------------------


def test_openssl_gets_in_by_1_3_alone(tmp_path: Path) -> None:
    with started(tmp_path) as broker:
        address = broker.urls[0].removeprefix("linns://")
        modern = s_client(address, tmp_path, "-tls1_3")
        assert "Verify return code: 0 (ok)" in modern
        assert "New, TLSv1.3" in modern
        for version in ("-tls1_1", "-tls1_2"):
            assert "New, (NONE)" in s_client(address, tmp_path, version, "-cipher", "ALL:@SECLEVEL=0")


def test_renegotiation_and_weak_ciphers_of_1_2_are_refused(tmp_path: Path) -> None:
    with started(tmp_path, 'versions = "1.2"') as broker:
        address = broker.urls[0].removeprefix("linns://")
        assert "New, TLSv1.2" in s_client(address, tmp_path, "-tls1_2")
        said = s_client(address, tmp_path, "-tls1_2", input=b"R\n")
        assert "no renegotiation" in said or "no_renegotiation" in said
        for cipher in ("AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-SHA", "ECDHE-RSA-AES128-SHA256"):
            assert "New, (NONE)" in s_client(address, tmp_path, "-tls1_2", "-cipher", f"{cipher}:@SECLEVEL=0")
        assert "Reused" not in s_client(address, tmp_path, "-tls1_3", "-reconnect")
