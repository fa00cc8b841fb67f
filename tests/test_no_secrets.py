"""No file of the repository has a key, a token or a password in it."""

from __future__ import annotations

import math
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE_BYTES_MAX = 4 << 20
"""Larger files are data of tests and pictures."""
ENTROPY_BITS_MIN = 3.6
"""Bits for each character from which a text is taken for random: names have 2 to 3.5, Base64 4 and more."""

PATTERNS = {
    "a private key": rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----\s+(?:[\w-]+: [^\n]+\s+)*[A-Za-z0-9+/=]{40,}",
    "a secret key as JSON": rb'"(?:d|dp|dq|qi)"\s*:\s*"[A-Za-z0-9_-]{40,}"',
    "a key of AWS": rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a token of GitHub": rb"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{60,})",
    "a token of GitLab": rb"\bglpat-[\w-]{20,}",
    "a token of Slack": rb"\bxox[abprs]-[A-Za-z0-9-]{10,}",
    "a key of Google": rb"\bAIza[\w-]{35}\b",
    "a key of Stripe": rb"\b[rs]k_live_[A-Za-z0-9]{20,}",
    "a token of PyPI": rb"\bpypi-AgEI[\w-]{50,}",
    "a token of npm": rb"\bnpm_[A-Za-z0-9]{36}\b",
    "a key of Azure": rb"AccountKey=[A-Za-z0-9+/]{60,}",
    "a signed token": rb"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}",
}
ASSIGNED = re.compile(
    rb"(?i)(?:password|passwd|passphrase|secret|token|credential|(?:api|access|account|private)[_-]?key)\w*"
    rb"""["']?\s*(?::=|=>|=|:)\s*["']?([\w+/=.~-]{16,})"""
)
_CLASSES = (re.compile(rb"[a-z]"), re.compile(rb"[A-Z]"), re.compile(rb"[0-9]"))
"""Characters that a random text has, and names of variables seldom all have."""


def entropy_bits(text: bytes) -> float:
    """The entropy of one character, by how often each one occurs."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


def secrets_of(text: bytes) -> Iterator[tuple[int, str, bytes]]:
    """Everything that looks like a secret: its line, its kind, and its text."""
    for kind, pattern in PATTERNS.items():
        for match in re.finditer(pattern, text):
            yield text.count(b"\n", 0, match.start()) + 1, kind, match[0]
    for match in ASSIGNED.finditer(text):
        mixed = all(each.search(match[1]) for each in _CLASSES)
        if mixed and entropy_bits(match[1]) >= ENTROPY_BITS_MIN:
            yield text.count(b"\n", 0, match.start()) + 1, "a random text with the name of a secret", match[1]


def tracked() -> list[Path]:
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no checkout of git, so that it is not known which files belong to it")
    return [ROOT / name for name in listed.decode().split("\0") if name]


def _made(*parts: str) -> bytes:
    """A text that this file does not have in one piece."""
    return "".join(parts).encode()


RANDOM = "q7Rk2" + "Zx9Vb4LmP0sT" + "w8Yc3"
PLANTED = {
    "a private key": _made("-----BEGIN RSA PRIV", "ATE KEY-----\n", "MIIEpAIBAAKCAQEA" * 4, "\n"),
    "a key of AWS": _made("x = 'AK", "IA", "Q" * 16, "'"),
    "a token of GitHub": _made("gh", "p_", "a1" * 18),
    "a signed token": _made("ey", "JhbGciOiJSUzI1NiJ9", ".ey", "JzdWIiOiJhbm4ifQ00", ".", "x" * 40),
    "a secret key as JSON": _made('{"kty": "OKP", "', 'd": "', "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A", '"}'),
    "a random text with the name of a secret": _made("db_pass", f'word = "{RANDOM}"'),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_secret_is_found(kind: str) -> None:
    assert [(line, found) for line, found, _ in secrets_of(b"\n" + PLANTED[kind])] == [(2, kind)]


@pytest.mark.parametrize(
    "how", ["PASSWORD={}", 'secret: "{}"', "apiKey := '{}'", '"token": "{}"', "export API_TOKEN={}"]
)
def test_a_random_text_is_found_however_it_is_written(how: str) -> None:
    assert [text for _, _, text in secrets_of(how.format(RANDOM).encode())] == [RANDOM.encode()]


@pytest.mark.parametrize(
    "text",
    [
        'password = "correct horse battery staple"',
        'password = { file = "/run/secrets/warehouse-2" }',
        "token=client.access_token_of(user)",
        "secret = self._environment_of_the_broker",
        '"-----BEGIN RSA PRIVATE KEY-----" in text',
        "scram = SCRAM-SHA-256$ITERATIONS:SALT$STORED:SERVER",
        "sha256 = 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    ],
)
def test_what_is_no_secret_is_not_found(text: str) -> None:
    assert list(secrets_of(text.encode())) == []


def test_no_file_has_a_secret_in_it() -> None:
    found = []
    files = tracked()
    assert len(files) > 500, "the repository is not empty"
    for path in files:
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= FILE_BYTES_MAX:
            for line, kind, text in secrets_of(path.read_bytes()):
                found.append(f"{path.relative_to(ROOT)}:{line}: {kind}: {text[:4]!r}... of {len(text)} characters")
    assert found == []
