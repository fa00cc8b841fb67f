"""TlsStream: TLS over any stream, behind the port of a stream.

OpenSSL works on two buffers in memory, so that the bytes go through the stream of any Env, also a simulated one, and
all waits stay where they are. ADR 0033 has the reasons and the costs.

Laws: at most `ENCRYPTED_BYTES` of input are encrypted at a time, and only when no ciphertext waits. Bytes count as sent
when the stream has taken their ciphertext; until then the caller keeps them, and no byte is encrypted twice. An end
without TLS's own notice of it (close_notify) is a lost connection, because an attacker on the way can cause it. One
thread at a time uses the state.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

import trio

from linn.core.batch.flat_message import Buffer
from linn.core.env.env import Stream
from linn.core.env.file_region import Sendable, behind
from linn.core.errors.tls import TlsFailed, TlsRequired
from linn.core.errors.tree import ConnectionLost
from linn.core.security.x509 import server_end_point

ENCRYPTED_BYTES = 64 << 10
"""Bytes encrypted at a time: four TLS records. Larger pieces gain nothing, and each waits in memory as ciphertext."""
RECEIVE_BYTES_MAX = 256 << 10
"""Bytes decrypted in one call, in about 0.3 ms, and sent before other tasks may run: the size of a receive buffer."""
_CIPHERTEXT_BYTES = 64 << 10
_RECORD_HEAD_BYTES = 5
_NOTICE_TRIES = 8
"""Attempts to pass the notice of the end to a stream, which may take nothing at times, as a simulated one does."""
_ALERT, _HANDSHAKE = 21, 22
"""Types of TLS records, in their first byte (RFC 8446, 5.1)."""
_RECORD_BYTES_MAX = 5 + (16 << 10) + 2048
"""Size of the largest record, in TLS 1.2."""

_REPLIES_BYTES_MAX = 16 << 10
"""Bytes that OpenSSL may answer while it decrypts, such as refusals to renegotiate in TLS 1.2, before the other side is
dropped: nothing sends them by themselves."""


class _Scratch(threading.local):
    """A buffer for received ciphertext on its way to OpenSSL's; one a thread: no task yields while it is used."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_CIPHERTEXT_BYTES))


_scratch = _Scratch()

Run = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a computation, possibly in a thread, and waits for it."""


class PeerCertificate(NamedTuple):
    """The verified certificate of the other side."""

    der: bytes
    uris: tuple[str, ...]
    """The URIs among the subject's alternative names."""
    dns_names: tuple[str, ...]


class TlsStream:
    """A stream inside TLS. `handshake` comes first."""

    __slots__ = (
        "_ciphertext",
        "_error",
        "_has_ended",
        "_has_more",
        "_has_received",
        "_in",
        "_is_sending",
        "_is_server",
        "_out",
        "_owed_bytes",
        "_ssl",
        "_stream",
        "peer",
        "server_end_point",
    )

    def __init__(
        self,
        stream: Stream,
        context: ssl.SSLContext,
        *,
        server_name: str | None = None,
        is_server: bool = False,
        server_end_point: bytes | None = None,
    ) -> None:
        """Take ownership of a connected stream.

        Args:
            server_name: the name or address that the certificate of the other side must have; None at the server.
            server_end_point: the channel binding of the server's own certificate; a client reads it.
        """
        self.peer = stream.peer
        self.server_end_point = server_end_point
        """The channel binding `tls-server-end-point` (RFC 5929) of the server's certificate in this connection; None
        before the handshake, and if the certificate's signature has no hash of its own (Ed25519)."""
        self._stream = stream
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._is_server = is_server
        self._ssl = context.wrap_bio(self._in, self._out, server_side=is_server, server_hostname=server_name)
        self._ciphertext: memoryview = memoryview(b"")
        """Ciphertext that the stream has not taken."""
        self._owed_bytes = 0
        """Bytes that are encrypted, and that the caller will pass again, because their ciphertext is not taken yet."""
        self._has_more = False
        """Whether bytes, or the end, may be received without waiting for the stream."""
        self._has_ended = self._has_received = False
        self._is_sending = False
        """Whether a `send` is in progress, or was cancelled: nothing else may be sent."""
        self._error: ConnectionLost | None = None

    # --- the loop's part ---

    async def _checkpoint(self) -> None:
        await trio.lowlevel.checkpoint()

    # --- the handshake ---

    async def handshake(self, run: Run) -> None:
        """Shake hands; each step of OpenSSL's is given to `run`. Limit its time.

        Raises:
            TlsFailed: the certificate of the other side is not accepted, or ours is not, or there is no common version.
            TlsRequired: at the server: the client does not speak TLS.
            ConnectionLost: the other side is gone.
        Cancellation: close the stream.
        """
        await self._shake(run)
        if not self._is_server:
            self.server_end_point = server_end_point(self._ssl.getpeercert(binary_form=True) or b"")

    async def _shake(self, run: Run) -> None:
        received, is_first = bytearray(), True
        while True:
            try:
                await run(self._ssl.do_handshake)
            except ssl.SSLWantReadError:
                await self._flush()
            except ssl.SSLError as error:
                self._send_alert()
                raise TlsFailed(f"no TLS connection with {self.peer}: {why(error)}") from error
            else:
                await self._flush()
                self._in.write(received)
                self._has_more = self._has_unread()
                return
            # Only whole records cost a computation: a client that sends single bytes causes none.
            while not (whole_bytes := _whole_bytes(received)):
                received += await self._receive_some()
                if is_first:
                    self._check_speaks_tls(received[0])
                is_first = False
            self._in.write(received[:whole_bytes])
            del received[:whole_bytes]

    async def _receive_some(self) -> bytes:
        view, count = _scratch.view, None
        while count is None:
            await self._stream.wait_readable()
            count = self._stream.receive_nowait([view])
        if not count:
            raise ConnectionLost(f"{self.peer} closed the connection during the TLS handshake")
        return bytes(view[:count])

    def _check_speaks_tls(self, first: int) -> None:
        if first in (_ALERT, _HANDSHAKE):
            return
        if self._is_server:
            raise TlsRequired("this listener speaks only TLS: its URL begins with linns://, or https:// for metrics")
        raise TlsFailed(f"{self.peer} does not speak TLS: its URL begins with linn://, not linns://")

    async def _flush(self) -> None:
        """Send all ciphertext."""
        if data := self._out.read():
            await self._stream.send([data])

    def _send_alert(self) -> None:
        """Tell the other side why it failed, as OpenSSL words it, if the stream takes that at once."""
        if not self._is_sending and not self._ciphertext:
            with suppress(ConnectionLost):
                self._stream.send_nowait([self._out.read()])

    async def send_plain(self, data: bytes) -> None:
        """Answer a client that does not speak TLS. Raises ConnectionLost."""
        await self._stream.send([data])

    # --- facts ---

    @property
    def version(self) -> str:
        """The version of TLS: "TLSv1.3"."""
        return self._ssl.version() or ""

    def peer_certificate(self) -> PeerCertificate | None:
        """Return the certificate of the other side; None if it has shown none."""
        der = self._ssl.getpeercert(binary_form=True)
        if der is None:
            return None
        names = cast(Sequence[tuple[str, str]], (self._ssl.getpeercert() or {}).get("subjectAltName", ()))
        uris, dns_names = (tuple(name for kind, name in names if kind == wanted) for wanted in ("URI", "DNS"))
        return PeerCertificate(der, uris, dns_names)

    # --- receiving ---

    def peer_uid(self) -> int | None:
        return None

    async def receive_into(self, buffer: memoryview) -> int:
        buffers, count = [buffer], None
        while count is None:
            await self.wait_readable()
            count = self.receive_nowait(buffers)
        return count

    async def wait_readable(self) -> None:
        # What is decrypted, or received, makes no socket readable.
        if self._has_more:
            await self._checkpoint()
        else:
            await self._stream.wait_readable()

    def interrupt(self) -> None:
        self._stream.interrupt()

    def receive_nowait(self, buffers: Sequence[memoryview]) -> int | None:
        total = 0
        self._has_more = True
        try:
            for buffer in buffers:
                filled = self._fill(buffer, RECEIVE_BYTES_MAX - total)
                total += filled
                if filled < len(buffer):
                    break
        except ConnectionLost as error:
            if not total:
                raise
            self._error = error
        if total or self._has_ended:
            return total
        return None

    def _fill(self, buffer: memoryview, bytes_max: int) -> int:
        """Decrypt into `buffer`; returns the number of bytes, fewer than fit if no more have arrived."""
        filled, size = 0, min(len(buffer), bytes_max)
        while filled < size and not self._has_ended:
            if self._error is not None:
                if filled:  # They come first.
                    break
                raise self._error
            try:
                count = cast(int, self._ssl.read(size - filled, buffer[filled:]))
            except ssl.SSLWantReadError:
                try:
                    has_fed = self._feed()
                except ConnectionLost as error:
                    self._error = error
                    continue
                if not has_fed:
                    self._has_more = False
                    break
            except ssl.SSLError as error:
                # In TLS 1.3 a client learns only now that its certificate is not accepted.
                kind = ConnectionLost if self._has_received else TlsFailed
                self._error = kind(f"the connection to {self.peer} is lost: {why(error)}")
                self._send_alert()
            else:
                self._has_received = True
                self._has_ended = count == 0
                filled += count
        return filled

    def _feed(self) -> bool:
        """Give OpenSSL the ciphertext that has arrived, at most one scratch buffer; False if there is none."""
        view = _scratch.view
        count = self._stream.receive_nowait([view])
        if count == 0:
            raise ConnectionLost(f"the connection to {self.peer} is lost: it was cut off, without an end of its TLS")
        if self._out.pending > _REPLIES_BYTES_MAX:
            raise ConnectionLost(f"the connection to {self.peer} is closed: it asks TLS for too much")
        if count:
            self._in.write(view[:count])
        return count is not None

    # --- sending ---

    def send_nowait(self, sendables: Sequence[Sendable]) -> int:
        if self._error is not None:
            raise self._error
        sent = 0
        while self._push():
            sent, self._owed_bytes = sent + self._owed_bytes, 0
            piece = _piece(behind(sendables, sent))
            if not piece:
                break
            self._encrypt(piece)
        return sent

    def _push(self) -> bool:
        """Pass ciphertext to the stream; True if none waits any more."""
        if self._ciphertext:
            self._ciphertext = self._ciphertext[self._stream.send_nowait([self._ciphertext]) :]
        return not self._ciphertext

    def _encrypt(self, piece: Buffer) -> None:
        assert not self._ciphertext, "what is encrypted is sent before more is"
        try:
            self._ssl.write(piece)
        except ssl.SSLError as error:
            raise ConnectionLost(f"the connection to {self.peer} is lost: {why(error)}") from error
        self._ciphertext = memoryview(self._out.read())
        self._owed_bytes = len(piece)

    async def send(self, sendables: Sequence[Sendable]) -> None:
        if self._error is not None:
            raise self._error
        self._is_sending = True
        left, in_a_row_bytes = list(sendables), 0
        while True:
            if self._ciphertext:
                await self._stream.send([self._ciphertext])
                self._ciphertext = memoryview(b"")
            in_a_row_bytes += self._owed_bytes
            left, self._owed_bytes = behind(left, self._owed_bytes), 0
            piece = _piece(left) or self._read(left)
            if not piece:
                break
            if in_a_row_bytes >= RECEIVE_BYTES_MAX:  # The stream may take all of it without a wait.
                in_a_row_bytes = 0
                await self._checkpoint()
            self._encrypt(piece)
        self._is_sending = False

    def _read(self, sendables: Sequence[Sendable]) -> Buffer:
        """Read the beginning of the piece of a file that comes first; b"" if nothing is left."""
        region = next((item for item in sendables if len(item)), None)
        if region is None:
            return b""
        assert not isinstance(region, Buffer), "buffers before it were taken"
        if not (piece := region.read(ENCRYPTED_BYTES)):
            raise ConnectionLost(f"the connection to {self.peer} is closed: a file was cut short while it was sent")
        return piece

    # --- the end ---

    async def aclose(self) -> None:
        """Close without yielding, and tell the other side that this is the end, if the stream takes that at once.

        As with a plain connection, the other side learns of bytes that were not read: it gets no notice of an end.
        """
        if self._error is None and not self._is_sending and self.version and not self._has_unread():
            with suppress(ssl.SSLError):  # It wants the other side's notice, for which nobody waits.
                self._ssl.unwrap()
            self._send_notice()
        self._error = ConnectionLost(f"the connection to {self.peer} is lost: it was closed on this side")
        self._has_more = self._has_ended = False
        await self._stream.aclose()

    def _has_unread(self) -> bool:
        return bool(self._in.pending or self._ssl.pending())

    def _send_notice(self) -> None:
        self._ciphertext = memoryview(bytes(self._ciphertext) + self._out.read())
        with suppress(ConnectionLost):
            for _ in range(_NOTICE_TRIES):
                if self._push():
                    break


def _whole_bytes(received: bytearray) -> int:
    """The size of the whole records in `received`; of everything if a record is too large to be one."""
    end = 0
    while len(received) >= end + _RECORD_HEAD_BYTES:
        size = _RECORD_HEAD_BYTES + int.from_bytes(received[end + 3 : end + 5])
        if size > _RECORD_BYTES_MAX:
            return len(received)
        if len(received) < end + size:
            break
        end += size
    return end


def _piece(sendables: Sequence[Sendable]) -> Buffer:
    """The bytes to encrypt next: of as many buffers as fit, so that small ones share a record; b"" before a file."""
    chosen: list[Buffer] = []
    room = ENCRYPTED_BYTES
    for item in sendables:
        if not len(item):
            continue
        if not room or not isinstance(item, Buffer):
            break
        chosen.append(item if len(item) <= room else memoryview(item)[:room])
        room -= len(chosen[-1])
    return chosen[0] if len(chosen) == 1 else b"".join(chosen)


_REASONS = {
    "UNKNOWN_CA": "the other side does not trust the certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the other side does not trust this side's certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other side requires a certificate, and this side has shown none",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other side says that this side's certificate has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other side does not accept this side's certificate",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the two sides have no cipher in common, or a certificate is missing",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "a certificate is required, and the other side has shown none",
    "UNSUPPORTED_PROTOCOL": "the other side wants a version of TLS that this side does not allow",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other side does not allow this side's versions of TLS",
    "NO_SHARED_CIPHER": "the two sides have no cipher in common",
}
"""OpenSSL's reasons that a person may have to act on, in words."""


def why(error: ssl.SSLError) -> str:
    """The reason of a failure of TLS, worded as the end of a message."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the other side is not accepted: {error.verify_message}"
    reason = error.reason or ""
    return _REASONS.get(reason) or (reason.replace("_", " ").lower() or str(error))
