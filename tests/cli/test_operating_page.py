"""The page about operating from the command line: its commands run in the order in which it has them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from linn.testing.process import BrokerProcess

PAGE = Path(__file__).parents[2] / "docs/how-to/operate-from-the-command-line.md"
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(300)
def test_every_command_on_the_page_does_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "linn"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m linn "$@"\n')
    command.chmod(0o755)
    assert len(BLOCKS) > 8
    script = tmp_path / "script"
    script.write_text("set -eu -o pipefail\n" + "".join(BLOCKS))
    with BrokerProcess(tmp_path) as broker:
        environment = os.environ | {"LINN_URL": broker.url, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-x", str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
        )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "linn: " not in done.stderr
    for said in ("nothing was lost", "order 17", "deleted copies", "goes on"):
        assert said in done.stdout
