"""BrokerPlace: where brokers are, and how Spark's processes log in there. It is pickled, and holds no secret.

Laws: Spark may show options in plans, pages and event logs. So they name files, which each process reads when it
connects, and an option that looks like a secret is refused, without repeating it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from linn.client.blocking.generated.client import Client, connect
from linn.client.login import Password, Token
from linn.client.options import Tls
from linn.core.env.address import refuse_user
from linn.core.env.real.env import RealEnv
from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import StorageError
from linn.spark_plugin.errors import SparkOptionInvalid

SERVERS = "linn.bootstrap.servers"
CREDENTIALS = "linn.credentials.file"
CA, CERTIFICATE, KEY = "linn.tls.ca", "linn.tls.certificate", "linn.tls.key"
PLACE = (SERVERS, CREDENTIALS, CA, CERTIFICATE, KEY)
"""Options of source and sink that say where the broker is."""
CREDENTIALS_BYTES_MAX = 64 << 10
"""Limit of a file of credentials; a token has at most 8 KiB."""
_SECRET = re.compile(r"passw|secret|token|credential|user|sasl|jaas", re.IGNORECASE)
_FORM = 'user = "NAME" and password = "SECRET", or token = "TOKEN", in TOML'


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """The URL of a broker or of several of a cluster, and paths of the files that a client needs there, which all
    machines must have.
    """

    url: str
    credentials: str | None = None
    ca: str | None = None
    """Authorities to trust; None: the system's."""
    certificate: str | None = None
    key: str | None = None

    def connect(self, name: str) -> Client:
        """Connect. Raises SparkOptionInvalid: a file can't be used; AuthFailed, TlsFailed, ConnectFailed and others."""
        has_tls = self.ca is not None or self.certificate is not None
        tls = Tls(ca=self.ca, certificate=self.certificate, key=self.key) if has_tls else None
        login = read_login(self.credentials) if self.credentials is not None else None
        return connect(self.url, name=name, tls=tls, login=login)


def broker_place(options: Mapping[str, str]) -> BrokerPlace:
    """Return the place that options, in lower case, name. Raises SparkOptionInvalid, AddressInvalid."""
    url, files = broker_url(options), {option: options.get(option, "").strip() or None for option in PLACE[1:]}
    of_tls = [option for option in (CA, CERTIFICATE, KEY) if files[option] is not None]
    if of_tls and not url.lower().startswith("linns://"):
        raise SparkOptionInvalid(f"{of_tls[0]} is for a connection with TLS: {SERVERS} begins with linns://")
    if files[KEY] is not None and files[CERTIFICATE] is None:
        raise SparkOptionInvalid(f"{KEY} needs {CERTIFICATE}")
    return BrokerPlace(url, files[CREDENTIALS], files[CA], files[CERTIFICATE], files[KEY])


def broker_url(options: Mapping[str, str]) -> str:
    """Return the URL of the broker, or of several brokers of a cluster. Raises SparkOptionInvalid, AddressInvalid."""
    address = options.get(SERVERS, "").strip()
    if not address:
        raise SparkOptionInvalid(f"{SERVERS} is missing: the broker's address, such as linn://127.0.0.1:5466")
    refuse_user(address.removeprefix("linn+unix:///"))
    return address if address.startswith("linn") and ":/" in address else f"linn://{address}"


def check_names(options: Mapping[str, str], known: Sequence[str], what: str) -> None:
    """Check that options, in lower case, are known to the source or the sink. Raises SparkOptionInvalid."""
    lower = {name.lower() for name in known}
    for name in [name for name in options if name not in lower]:
        if _SECRET.search(name):
            raise SparkOptionInvalid(
                f"linn's Spark {what} has no option {name!r}: options stand in plans and event logs. Write the login "
                f"into a file, and name it in {CREDENTIALS}"
            )
        raise SparkOptionInvalid(f"linn's Spark {what} has no option {name!r}{did_you_mean(name, known)}")


class _Credentials(msgspec.Struct, forbid_unknown_fields=True):
    user: str | None = None
    password: str | None = None
    token: str | None = None

    def __post_init__(self) -> None:
        given = bool(self.user), bool(self.password), bool(self.token)
        if given not in ((True, True, False), (False, False, True)):
            raise ValueError("neither a user with a password, nor a token")


def read_login(path: str) -> Password | Token:
    """Read the login in a file that only its owner may use; a token is read again at each connection.

    Raises SparkOptionInvalid, which does not repeat the file's text.
    """
    found = _read(path)
    if found.token is not None:
        return Token(lambda: _read(path).token or "")
    return Password(found.user or "", found.password or "")


def _read(path: str) -> _Credentials:
    try:
        text = RealEnv().disk.read_named(path, CREDENTIALS_BYTES_MAX, private=True)
    except StorageError as error:
        raise SparkOptionInvalid(f"{CREDENTIALS}: {error.text}") from error
    try:
        return msgspec.toml.decode(text, type=_Credentials)
    except (msgspec.MsgspecError, ValueError):
        raise SparkOptionInvalid(f"{CREDENTIALS}: {path} does not have {_FORM}") from None
