"""Java programs from Maven Central: a class path, by the ordinary client and a project file of our own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.peers.peer import PeerMissing
from benchmarks.peers.server_process import program

TIMEOUT_S = 300.0
INSTALL = "apt-get install maven openjdk-17-jre-headless"
PROJECT = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>linn.benchmarks</groupId>
  <artifactId>peers</artifactId>
  <version>1</version>
  <dependencies>{}</dependencies>
</project>
"""
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def java() -> str:
    """The program. Raises PeerMissing."""
    return program("java", INSTALL)


def java_version() -> str:
    """Raises PeerMissing."""
    said = subprocess.run([java(), "-version"], capture_output=True, text=True, timeout=TIMEOUT_S).stderr
    return said.split('"')[1] if '"' in said else said.strip()


def class_path(artifacts: Sequence[str]) -> str:
    """Paths of artifacts (`group:name:version`) and all they need; Maven keeps them. Raises PeerMissing."""
    maven = program("mvn", INSTALL)
    with TemporaryDirectory(prefix="linn-peers-") as name:
        folder = Path(name)
        dependencies = [DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts]
        (folder / "pom.xml").write_text(PROJECT.format("".join(dependencies)))
        command = [maven, "--batch-mode", "--quiet", "dependency:build-classpath", "-Dmdep.outputFile=class-path"]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise PeerMissing(f"Maven did not fetch {', '.join(artifacts)} within {TIMEOUT_S:g} s") from None
        if done.returncode:
            raise PeerMissing(f"Maven could not fetch {', '.join(artifacts)}: {done.stdout[:300].strip()}")
        return (folder / "class-path").read_text().strip()
