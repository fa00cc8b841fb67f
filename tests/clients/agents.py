"""Conformance agents: one small program per client, built where this machine can build it. See write-a-client.md."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Said = dict[str, Any]
Commands = Callable[[str], list[str]]
"""A function from a language to the command that starts its agent."""

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "schema" / "vectors"
TYPESCRIPT = ROOT / "clients" / "typescript"
CPP = ROOT / "clients" / "cpp"
CPP_BUILD = ROOT / "build" / "clients-cpp"
"""Kept between runs, as `node_modules` is; git ignores both."""
ANSWER_TIMEOUT_S = 300.0
END_TIMEOUT_S = 100.0
STEP_TIMEOUT_S = 900.0
"""The timeout of one step of a build: a first build of the C++ client on a busy machine."""


class Missing(Exception):
    """Raised if a dependency of an agent is not on this machine."""


class Refused(Exception):
    """An agent answered with an error."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{text} [{code}]")
        self.code = code


# --- building --------------------------------------------------------------------------------------------------------


def build_python() -> list[str]:
    return [sys.executable, "-W", "error", str(Path(__file__).parent / "python_agent.py")]


@contextlib.contextmanager
def building_alone(folder: Path) -> Iterator[None]:
    """Test files may run beside one another, and all want what is built in `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_cpp() -> list[str]:
    with building_alone(CPP_BUILD):
        return _build_cpp()


def _build_cpp() -> list[str]:
    need("cmake", "capnp")
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++", os.environ.get("CXX", ""))):
        raise Missing("no C++ compiler")
    if not (CPP / "CMakeLists.txt").is_file():
        raise Missing("the C++ client is not here")
    # Without what takes the compiler longest: debug information, which nobody looks at, and optimisation, a third each.
    flags = "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 -DNDEBUG"
    configured = run(["cmake", "-S", str(CPP), "-B", str(CPP_BUILD), flags])
    if configured.returncode != 0 and "CapnProto" in configured.stderr:
        raise Missing("Cap'n Proto's headers are not installed (libcapnp-dev)")
    check(configured)
    check(run(["cmake", "--build", str(CPP_BUILD), "--parallel", "2"]))
    return [str(CPP_BUILD / "linn-conformance-agent")]


def build_typescript() -> list[str]:
    with building_alone(CPP_BUILD.parent / "clients-typescript"):
        return _build_typescript()


def _build_typescript() -> list[str]:
    need("node", "npm")
    version = run(["node", "--version"]).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < 20:
        raise Missing(f"node {version} is older than 20")
    lock, installed = TYPESCRIPT / "package-lock.json", TYPESCRIPT / "node_modules" / ".package-lock.json"
    if not installed.is_file() or installed.stat().st_mtime < lock.stat().st_mtime:
        done = run(["npm", "ci", "--no-progress"], TYPESCRIPT)
        if done.returncode != 0:
            raise Missing(f"npm could not install: {done.stderr.strip()[-300:]}")
        installed.touch()
    # Another worker may be running what is built: it is left alone where nothing is newer.
    stamp = TYPESCRIPT / "dist" / ".built"
    sources = [path for name in ("src", "test", "conformance") for path in (TYPESCRIPT / name).rglob("*.ts")]
    newest = max(path.stat().st_mtime for path in [*sources, lock, TYPESCRIPT / "tsconfig.json"])
    if not stamp.is_file() or stamp.stat().st_mtime < newest:
        check(run(["npm", "run", "build", "--silent"], TYPESCRIPT))
        stamp.touch()
    return ["node", str(TYPESCRIPT / "dist" / "conformance" / "agent.js")]


BUILDERS: Mapping[str, Callable[[], list[str]]] = {
    "python": build_python,
    "cpp": build_cpp,
    "typescript": build_typescript,
}
UNIT_TESTS: Mapping[str, tuple[Path, list[str]]] = {
    "cpp": (CPP_BUILD, ["ctest", "--output-on-failure"]),
    "typescript": (TYPESCRIPT, ["sh", "-c", "node --test dist/test/*.test.js"]),
}
"""The clients with tests of their own: their folders, and the commands that run them."""


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise Missing(f"no {program}")


def run(command: list[str], folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=STEP_TIMEOUT_S)


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, f"{done.args}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


# --- running ---------------------------------------------------------------------------------------------------------


class AgentProcess:
    """An agent in a process of its own. Use it with `with`; leaving the block ends it."""

    def __init__(self, language: str, command: list[str]) -> None:
        self.language = language
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._received = b""

    def ask(self, op: str, **fields: Any) -> Said:
        """Send a request and return the answer. Raises Refused."""
        answer = self.ask_line(json.dumps({"op": op, **fields}))
        if "error" in answer:
            raise Refused(answer["error"]["code"], answer["error"]["text"])
        result: Said = answer["ok"]
        return result

    def ask_line(self, line: str) -> Said:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        answer: Said = json.loads(self._line(time.monotonic() + ANSWER_TIMEOUT_S))
        return answer

    def _line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                assert selector.select(max(0.0, deadline - time.monotonic())), f"{self.language} does not answer"
                part = os.read(self._process.stdout.fileno(), 1 << 20)
                assert part, f"the {self.language} agent ended with {self._process.wait(END_TIMEOUT_S)}"
                self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return line

    @property
    def ended(self) -> bool:
        """Whether it was told to end, or has ended."""
        assert self._process.stdin is not None
        return self._process.stdin.closed or self._process.poll() is not None

    def end(self) -> int:
        """Close its input, and wait for its end. Its exit code; -9 where it did not end, and was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            return self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait(END_TIMEOUT_S)
        finally:
            self._process.stdout.close()

    def __enter__(self) -> AgentProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
