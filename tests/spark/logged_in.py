"""A broker that speaks only TLS, and only with users; and the options with which a job of Spark logs in there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import linn.sync
from linn.core.security.sasl.scram import make_verifier
from linn.testing.certificates import AUTHORITY, tls_table
from linn.testing.process import BrokerProcess

PASSWORD = "correct horse battery staple"
_VERIFIER = make_verifier(PASSWORD, b"salt of 16 bytes", 4_096).text()
_HEAD = """
[broker]
data_dir = "data"
[listeners.native]
address = "127.0.0.1:0"
tls = "edge"
login = "required"
[users.root]
roles = ["administrator"]
scram = "{verifier}"
[users.ann]
roles = ["job"]
scram = "{verifier}"
[roles.job]
"topic:flights" = ["consume"]
"topic:copies" = ["publish"]
"topic:counts" = ["publish"]
"transaction:spark.*" = ["use"]
"transaction:counts" = ["use"]
"""


def secured(folder: Path, config: str) -> BrokerProcess:
    """Write a certificate; return a broker with these tables too, in which ann reads flights and writes copies."""
    edge = "".join(f'{key} = "{value}"\n' for key, value in tls_table(folder, "127.0.0.1").items())
    text = f"{_HEAD.format(verifier=_VERIFIER)}\n[tls.edge]\n{edge}{config}"
    return BrokerProcess(folder, text, listen=())


def credentials(folder: Path, password: str = PASSWORD) -> Path:
    """Write a file with ann's login."""
    path = folder / f"ann-{len(password)}.toml"
    path.touch(0o600)
    path.write_text(f'user = "ann"\npassword = "{password}"\n')
    return path


def job_options(broker: BrokerProcess, password: str = PASSWORD) -> dict[str, str]:
    """Return the options of ann's jobs."""
    return {
        "linn.bootstrap.servers": broker.url,
        "linn.credentials.file": str(credentials(broker.folder, password)),
        "linn.tls.ca": str(broker.folder / AUTHORITY),
    }


def as_root(broker: BrokerProcess) -> Any:
    """Connect as the administrator."""
    login, tls = linn.Password("root", PASSWORD), linn.Tls(ca=broker.folder / AUTHORITY)
    return linn.sync.connect(broker.url, login=login, tls=tls)


def tells(folder: Path, secret: str) -> list[Path]:
    """The files below a folder that have a secret in them."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if secret.encode() in path.read_bytes()]
