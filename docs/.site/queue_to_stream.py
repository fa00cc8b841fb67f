"""Change a queue into a stream on a real broker, with the commands that a reader would type.

Recorded from the root of a clone:

    python docs/.site/terminal_recording.py --columns 82 --lines 30 --seconds-max 1.6 \\
        --title "A queue becomes a stream, in place" docs/pictures/queue-to-stream.svg \\
        python docs/.site/queue_to_stream.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from linn.testing.process import BrokerProcess

COMMANDS = (
    ("a queue: each message to one worker", "linn topics create orders kind=queue"),
    ("", "linn publish orders one two three"),
    ("in place, while it is in use: a queue and a stream", "linn topics alter orders kind=both"),
    ("a worker takes a message from the queue", "linn consume orders --count 1"),
    ("a consumer group reads all of them from the log", "linn consume orders --group audit --count 3"),
    ("and a stream only: no message was moved or copied", "linn topics alter orders kind=stream"),
    ("", "linn browse orders --format '{partition}/{offset} {value}'"),
    ("", "linn topics"),
)
"""(comment, command)"""
BEFORE_S, AFTER_S = 0.8, 1.6
DIM, GREEN, PLAIN = "\x1b[90m", "\x1b[32m", "\x1b[0m"


def main() -> None:
    """Type all commands. Raises CalledProcessError where one fails."""
    with tempfile.TemporaryDirectory() as folder, BrokerProcess(Path(folder)) as broker:
        environment = {**os.environ, "LINN_URL": broker.url}
        for comment, command in COMMANDS:
            if comment:
                print(f"{DIM}# {comment}{PLAIN}", flush=True)
            print(f"{GREEN}${PLAIN} {command}", flush=True)
            time.sleep(BEFORE_S)
            typed = command.replace("linn ", f"{sys.executable} -m linn ", 1)
            subprocess.run(typed, shell=True, env=environment, check=True)
            time.sleep(AFTER_S)


if __name__ == "__main__":
    main()
