"""Metrics over HTTP, by a real process: what a scraper gets, and what bad, slow and hostile clients can't do."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from linn.core.metrics.registry import METRICS
from linn.protocols.http.plugin import MetricsSettings
from linn.testing.process import BrokerNotReady, BrokerProcess

IDLE_S_MAX = MetricsSettings().idle_timeout_s
LISTENERS = """
[listeners.watch]
protocol = "metrics"
address = "127.0.0.1:0"
[listeners.native]
address = "127.0.0.1:0"
"""
TOPICS = '[topics.jobs]\n[topics.events]\nkind = "stream"\n'


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    config = LISTENERS + TOPICS
    with BrokerProcess(tmp_path_factory.mktemp("watched"), config, listen=()) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log_text(), "whatever clients did"


def http_of(broker: BrokerProcess) -> str:
    (url,) = [url for url in broker.urls if url.startswith("http://")]
    return url


def web(broker: BrokerProcess) -> socket.socket:
    host, port = http_of(broker).removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=IDLE_S_MAX + 10)


def rest_of(client: socket.socket) -> bytes:
    """Read until the broker closes."""
    received = b""
    try:
        while chunk := client.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def publish(broker: BrokerProcess, topic: str, *values: str) -> None:
    command = [sys.executable, "-m", "linn", "publish", topic, *values, "--url", broker.url]
    subprocess.run(command, check=True, capture_output=True, timeout=300)


def test_the_native_url_comes_first_whatever_the_order_in_the_file(broker: BrokerProcess) -> None:
    assert [url.partition(":")[0] for url in broker.urls] == ["linn", "http"]


def test_a_scraper_reads_what_was_published(broker: BrokerProcess) -> None:
    publish(broker, "jobs", "a", "b", "c")
    answer = httpx.get(f"{http_of(broker)}/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    wanted = {metric.name.removesuffix("_total"): metric for metric in METRICS if not metric.per_connection}
    assert set(families) == set(wanted)
    for name, metric in wanted.items():
        assert (families[name].type, families[name].documentation) == (metric.kind, metric.help)
    published = {
        tuple(sample.labels.values()): sample.value for sample in families["linn_topic_published_records"].samples
    }
    assert published == {("jobs",): 3, ("events",): 0}
    (memory,) = families["linn_process_memory_bytes"].samples
    assert memory.value == pytest.approx(psutil.Process(broker.pid).memory_info().rss, rel=0.5)
    (descriptors,) = families["linn_process_descriptors"].samples
    assert abs(descriptors.value - psutil.Process(broker.pid).num_fds()) <= 2
    lag = {sample.name: sample.value for sample in families["linn_loop_lag_seconds"].samples}
    assert lag["linn_loop_lag_seconds_bucket"] == lag["linn_loop_lag_seconds_count"], "the last bucket is +Inf"


def test_connections_have_samples_of_their_own_where_the_listener_says_so(tmp_path: Path) -> None:
    config = LISTENERS.replace('"metrics"\n', '"metrics"\nper_connection = true\n')
    with BrokerProcess(tmp_path, config, listen=()) as broker, web(broker) as client:
        text = httpx.get(f"{http_of(broker)}/metrics").text
        host, port = client.getsockname()
        assert f'peer="{host}:{port}"' in text


def test_without_the_right_to_see_the_broker_there_are_no_metrics(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, LISTENERS + '[users.root]\nroles = ["administrator"]\n', listen=()) as process:
        answer = httpx.get(http_of(process) + "/metrics")
        assert (answer.status_code, answer.text) == (403, 'user "anonymous" may not see broker\n')
        assert httpx.head(http_of(process) + "/metrics").status_code == 403
        assert httpx.get(http_of(process) + "/ready").status_code == 200


@pytest.mark.parametrize(("path", "said"), [("/health", "alive\n"), ("/ready", "ready\n")])
def test_a_probe_is_answered(broker: BrokerProcess, path: str, said: str) -> None:
    answer = httpx.get(f"{http_of(broker)}{path}")
    assert (answer.status_code, answer.text) == (200, said)
    assert answer.headers["cache-control"] == "no-store"
    head = httpx.head(f"{http_of(broker)}{path}")
    assert (head.status_code, head.text) == (200, "")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/metrics/", 404),
        ("GET", "/../etc/passwd", 404),
        ("GET", "/m%65trics", 200),
        ("GET", "/metrics?name[]=x", 200),
        ("POST", "/metrics", 405),
        ("DELETE", "/ready", 405),
        ("BREW", "/health", 405),
    ],
)
def test_other_requests_are_refused(broker: BrokerProcess, method: str, path: str, status: int) -> None:
    answer = httpx.request(method, f"{http_of(broker)}{path}")
    assert answer.status_code == status
    if status == 405:
        assert answer.headers["allow"] == "GET, HEAD"


def test_one_connection_carries_many_requests(broker: BrokerProcess) -> None:
    with httpx.Client() as client:
        for _ in range(20):
            assert client.get(f"{http_of(broker)}/health").status_code == 200
            assert client.get(f"{http_of(broker)}/metrics").status_code == 200


def test_http_1_0_is_answered(broker: BrokerProcess) -> None:
    with web(broker) as client:
        client.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
        assert rest_of(client).endswith(b"\r\n\r\nready\n")


@pytest.mark.parametrize(("path", "end"), [("/ready", b"ready\n"), ("/metrics", b"\r\n0\r\n\r\n")])
def test_a_client_that_has_finished_sending_gets_the_whole_answer(broker: BrokerProcess, path: str, end: bytes) -> None:
    with web(broker) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        client.shutdown(socket.SHUT_WR)
        answer = rest_of(client)
    assert answer.endswith(end)
    assert (b"linn_storage_cut_bytes{" in answer) == (path == "/metrics"), "which comes last"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\x01\x02\xff\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nNo colon here\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 100_000,
    ],
    ids=["bytes", "no version", "header", "length", "lengths", "large header", "large path"],
)
def test_a_malformed_request_is_refused_and_its_connection_closed(broker: BrokerProcess, request_bytes: bytes) -> None:
    with web(broker) as client:
        client.sendall(request_bytes)
        answer = rest_of(client)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer[:100]
    assert httpx.get(f"{http_of(broker)}/ready").status_code == 200


def test_a_request_body_is_discarded(broker: BrokerProcess) -> None:
    chunks = b"".join(b"1\r\nx\r\n" for _ in range(5000))
    with web(broker) as client:
        client.sendall(b"GET /ready HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
        assert rest_of(client).startswith(b"HTTP/1.1 200")
    with web(broker) as client:
        client.sendall(b"GET /ready HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\nxxx")
        assert rest_of(client).startswith(b"HTTP/1.1 200")


def test_a_silent_or_slow_client_is_let_go(broker: BrokerProcess) -> None:
    started = time.monotonic()
    with web(broker) as silent, web(broker) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHo")
        assert rest_of(silent) == b""
        assert rest_of(slow) == b""
    assert time.monotonic() - started < IDLE_S_MAX + 20


def test_a_request_for_websockets_or_http_2_is_answered_in_http_1_1(broker: BrokerProcess) -> None:
    with web(broker) as client:
        upgrade = b"Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n" + upgrade + key)
        assert rest_of(client).startswith(b"HTTP/1.1 200")
    with web(broker) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100)
        assert rest_of(client).startswith(b"HTTP/1.1 4")


def test_a_hundred_watchers_are_enough_and_clients_still_come(broker: BrokerProcess) -> None:
    crowd = [web(broker) for _ in range(120)]
    try:
        publish(broker, "events", "x")
    finally:
        for client in crowd:
            client.close()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            text = httpx.get(f"{http_of(broker)}/metrics").text
        except httpx.TransportError:
            continue
        assert 'linn_listener_connections_refused_total{listener="watch",protocol="metrics"}' in text
        return
    pytest.fail("watchers that are gone keep their places")


def test_a_busy_port_keeps_the_broker_from_starting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = LISTENERS.replace("127.0.0.1:0", address, 1)
        with pytest.raises(BrokerNotReady, match=r"listener\.address_in_use") as caught:
            BrokerProcess(tmp_path, config, listen=()).start()
    assert caught.value.returncode == 6
    assert address in caught.value.text


WITHOUT = """
import importlib.abc, sys

missing = sys.argv.pop(1)

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from linn.cli.main import main
main()
"""


@pytest.mark.parametrize("missing", ["h11", "prometheus_client"])
def test_without_the_extra_one_line_says_how_to_install_it(tmp_path: Path, missing: str) -> None:
    (tmp_path / "linn.toml").write_text(LISTENERS)
    command = [sys.executable, "-c", WITHOUT, missing, "serve", "linn.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert 'pip install "linn[metrics]"' in done.stderr
    assert missing in done.stderr
    assert "[plugin.failed]" in done.stderr


def test_a_broker_without_such_a_listener_loads_nothing_for_it() -> None:
    code = "import sys; from linn.core.plugins.manager import built_in; built_in(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "linn.protocols.http.plugin" in loaded
    assert [name for name in loaded if name.partition(".")[0] in ("prometheus_client", "h11")] == []


def test_a_stop_does_not_wait_for_watchers(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, LISTENERS + '[broker]\ndrain_timeout = "30s"\n', listen=()) as broker:
        with web(broker) as idle, web(broker) as half:
            half.sendall(b"GET /metrics HTTP/1.1\r\nHost")
            assert httpx.get(f"{http_of(broker)}/ready").status_code == 200
            assert broker.stop() == 0, "or it was killed before the time for a drain was over"
            assert rest_of(idle) == b""
    assert "Traceback" not in broker.log_text()


def test_a_plugin_that_holds_up_the_loop_is_counted_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    config = LISTENERS + '[plugins]\nload = ["dozing_plugin"]\n[broker]\nloop_held_max = "100ms"\n'
    with BrokerProcess(tmp_path, config, listen=()) as broker:
        command = [sys.executable, "-m", "linn", "topics", "create", "jobs", "--url", broker.url]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        families = {
            family.name: family
            for family in text_string_to_metric_families(httpx.get(f"{http_of(broker)}/metrics").text)
        }
    (held,) = families["linn_loop_held"].samples
    assert "dozing_plugin" in held.labels["plugin"]
    assert held.value == 1
