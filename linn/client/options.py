"""ClientOptions: the settings of a client as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from linn.client.arguments import I64_MAX, checked_number, checked_span, checked_text
from linn.client.login import Password, Token, checked_login
from linn.core.errors.tree import MessageInvalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Authorities to trust, and the client's own certificate, for linns:// URLs. The host's name is always checked.

    Files are in PEM, and are read at each connection.

    Example:
        tls = linn.Tls(ca="ca.pem", certificate="worker.pem", key="worker-key.pem")
        print(tls.ca)  # linn.connect("linns://localhost:5467", tls=tls) uses them
    """

    ca: str | Path | None = None
    """File of the authorities to trust. None: the system's."""
    certificate: str | Path | None = None
    """File of the client's own certificate, for a broker that asks for one."""
    key: str | Path | None = None
    """File of that certificate's private key. None: it is in the same file."""

    def __post_init__(self) -> None:
        """Check that a key has its certificate. Raises MessageInvalid."""
        if self.key is not None and self.certificate is None:
            raise MessageInvalid("tls: a key needs its certificate")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options of a client, the keyword arguments of `linn.connect`.

    Example:
        async with linn.connect("linn://127.0.0.1:5466", request_timeout_s=5, retries_max=3) as client:
            print(client.options.retries_max)
    """

    name: str = "linn-python"
    """Name of this client in the broker's logs and in `linn connections`, which shows up to 200 characters of it."""
    connect_timeout_s: float = 5.0
    """Time limit of one attempt to connect and be welcomed."""
    wait_s: float = 0.0
    """Time that `connect` waits for the first connection; 0: it tries once."""
    request_timeout_s: float = 30.0
    """Time limit of a request and its answer, and of a publish from the time its batch is whole, over any number of
    connections."""
    retries_max: int | None = None
    """Attempts to reconnect before everything that waits fails, and attempts to send one batch again.

    None: the client tries for as long as it is open; a request or a publish fails when its timeout is over."""
    backoff_s: float = 0.05
    """Wait before the second attempt. It doubles with each attempt; a random part, up to half, is subtracted."""
    backoff_max_s: float = 2.0
    """Longest wait between attempts."""
    metadata_age_max_s: float = 60.0
    """Age at which a producer asks again how many partitions its topic has."""
    tls: Tls | None = None
    """The authorities to trust, and the client's certificate, for linns:// URLs. None: the system's authorities."""
    login: Password | Token | None = None
    """The user, for a broker that requires a login. None: who the connection itself says, by a certificate or a Unix
    socket."""

    def __post_init__(self) -> None:
        """Check all options. Raises MessageInvalid."""
        checked_login(self.login)
        checked_text(self.name, "name")
        if self.retries_max is not None:
            checked_number(self.retries_max, "retries_max", I64_MAX, or_none="tries for as long as the client is open")
        for name in (
            *("connect_timeout_s", "wait_s", "request_timeout_s"),
            *("backoff_s", "backoff_max_s", "metadata_age_max_s"),
        ):
            checked_span(getattr(self, name), name)

    def _is_used_up(self, attempts: int) -> bool:
        """Tell whether this number of attempts exceeds the limit."""
        return self.retries_max is not None and attempts > self.retries_max

    def _backoff_of(self, attempt: int, fraction: float) -> float:
        """Return the wait in seconds before attempt `attempt` + 1; `fraction` in [0, 1] is the random part."""
        longest = min(self.backoff_max_s, self.backoff_s * 2.0 ** min(attempt, 30))
        return longest * (1 - fraction / 2)
