"""EtcdClient: requests to any member of etcd that answers.

Laws: a change that must not be made twice is asked for once, and its outcome is unknown unless etcd itself says that it
did nothing. All other requests are repeated at the next member, which is asked first from then on. A member that owes
an answer for SILENT_S is asked for nothing more while another one is there. A request ends within REQUEST_S;
CONNECTIONS_MAX are under way at a time.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from linn.api import (
    ConnectFailed,
    ConnectionLost,
    Env,
    LeaseLost,
    LinnError,
    MetadataError,
    MetadataUnavailable,
    MetadataUnknown,
    SecretUnusable,
    StorageError,
    TlsFailed,
    TlsInvalid,
    TlsStream,
)
from linn.metadata_stores.etcd.endpoint import Endpoint
from linn.metadata_stores.etcd.http_connection import HttpConnection
from linn.metadata_stores.etcd.messages import TokenAnswer, decoded, login_request, refusal_of

REQUEST_S = 5.0
"""Time for a request, at whatever members it is tried."""
ATTEMPT_S_MIN = 1.0
"""Time for one member at least: an election within etcd takes about a second."""
SILENT_S = 0.5
"""Time without an answer after which requests go to another member: a small part of the shortest session, and several
times what a busy etcd takes."""
CONNECTIONS_MAX = 8
IDLE_S_MAX = 30.0
"""Age at which an unused connection is closed: a firewall may have forgotten it."""
ANSWER_BYTES_MAX = 1 << 20
"""Limit of an answer without keys, and of an error."""
_OK = 200
T = TypeVar("T")


class _Failure(Exception):
    """A request that failed at one member."""

    def __init__(self, error: LinnError, *, did_nothing: bool = False, is_final: bool = False) -> None:
        super().__init__(error.text)
        self.error = error
        self.did_nothing = did_nothing
        """Whether etcd has certainly not done its part."""
        self.is_final = is_final
        """Whether other members would say the same."""


class EtcdClient:
    """Connections to the members of one etcd."""

    def __init__(
        self,
        endpoints: tuple[Endpoint, ...],
        env: Env,
        *,
        tls: Callable[[], ssl.SSLContext],
        login: Callable[[], tuple[str, str]] | None = None,
    ) -> None:
        """`tls` makes the context of a connection; `login` reads the user and the password, None: without."""
        self._endpoints = endpoints
        self._env = env
        self._tls = tls
        self._login = login
        self._token = ""
        self._first = 0
        """The member to ask first."""
        self._idle: list[list[HttpConnection]] = [[] for _ in endpoints]
        self._owed_s: list[list[float]] = [[] for _ in endpoints]
        """The times at which each member was asked for answers that it still owes."""
        self._places = trio.Semaphore(CONNECTIONS_MAX)
        self._attempt_s = max(ATTEMPT_S_MIN, REQUEST_S / len(endpoints))
        self._is_closed = False

    async def ask(
        self,
        path: str,
        body: bytes,
        read: Callable[[bytes], T],
        *,
        changes: bool = False,
        repeats: bool = True,
        bytes_max: int = ANSWER_BYTES_MAX,
    ) -> T:
        """Ask for something, and return what `read` makes of the answer.

        Args:
            read: decodes an answer, or raises MetadataError.
            changes: whether the caller must know if it was done.
            repeats: whether it may be asked for again when no answer came.
            bytes_max: limit of the answer.

        Raises:
            MetadataUnavailable: no member answers, or a file of the settings can't be used; if `changes`, nothing was
                done.
            MetadataUnknown: no answer came, and it may have been done, or may still be; only if `changes`.
            LeaseLost, LimitExceeded, MetadataError: etcd refuses; nothing was done. MetadataError, also: the answer is
                none of etcd's.
        Cancellation: it may have been done; the next member is asked first from then on.
        """
        end_s = self._env.clock.monotonic() + REQUEST_S
        failure = _Failure(MetadataUnavailable("too many requests to etcd wait for their answers"), did_nothing=True)
        was_sent = False
        with trio.move_on_after(REQUEST_S) as waiting:
            await self._places.acquire()
        if waiting.cancelled_caught:
            raise failure.error
        try:
            # One more than there are members: a connection may have been closed meanwhile, or a token have ended.
            for _ in range(len(self._endpoints) + 1):
                left_s = end_s - self._env.clock.monotonic()
                if left_s <= 0:
                    break
                place = self._chosen()
                try:
                    with self._owing(place):
                        return await self._ask_one(path, body, read, left_s, repeats=repeats, bytes_max=bytes_max)
                except trio.Cancelled:
                    self._move_on(place)  # The caller could wait no longer, and will ask again.
                    raise
                except _Failure as error:
                    failure = error
                    was_sent = was_sent or not error.did_nothing
                    if error.is_final or (was_sent and not repeats):
                        break
        finally:
            self._places.release()
        if changes and was_sent and not failure.is_final:
            raise MetadataUnknown(f"etcd may have made the change, or not: {failure.error.text}") from failure
        raise failure.error from failure

    async def ask_beside(self, path: str, body: bytes, read: Callable[[bytes], T]) -> T:
        """Ask as `ask`, and once more each SILENT_S without an answer; the first outcome counts.

        A member that is alive may owe its answer to one that is not: it has passed the request on to etcd's leader.
        Raises and cancellation: as `ask`.
        """
        found, errors = list[T](), list[LinnError]()

        async def ask() -> None:
            try:
                found.append(await self.ask(path, body, read))
            except LinnError as error:
                errors.append(error)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for _ in range(len(self._endpoints)):
                nursery.start_soon(ask)
                await self._env.clock.sleep(SILENT_S)
        if found:
            return found[0]
        raise errors[0]

    async def _ask_one(
        self, path: str, body: bytes, read: Callable[[bytes], T], left_s: float, *, repeats: bool, bytes_max: int
    ) -> T:
        """Ask the first member. Raises _Failure."""
        place, attempt_s = self._first, min(left_s, self._attempt_s)
        connection = await self._connected(place, attempt_s)
        try:
            headers = await self._headers(place, connection, attempt_s)
            with trio.move_on_after(attempt_s if repeats else left_s):
                answer = await connection.ask(path, body, headers, bytes_max)
                if answer.status != _OK:
                    raise self._refused(place, answer.status, answer.body)
                found = read(answer.body)
                self._keep(place, connection)
                return found
            raise self._silent(place, attempt_s if repeats else left_s)
        except LeaseLost as error:
            self._keep(place, connection)
            raise _Failure(error, did_nothing=True, is_final=True) from error
        except (ConnectionLost, MetadataError) as error:
            self._move_on(place)
            raise _Failure(self._as_metadata_error(place, error)) from error
        finally:
            if connection not in self._idle[place]:
                await connection.aclose()

    async def begin(self, path: str, body: bytes) -> HttpConnection:
        """Ask for an answer without an end, at the first member that gives one; returns its connection, which the
        caller closes.

        Raises MetadataUnavailable, MetadataError.
        """
        failure = _Failure(MetadataUnavailable("etcd does not answer"))
        for _ in range(len(self._endpoints) + 1):
            try:
                with self._owing(self._chosen()):
                    return await self._begin_one(path, body)
            except _Failure as error:
                failure = error
                if error.is_final:
                    break
        raise failure.error from failure

    async def _begin_one(self, path: str, body: bytes) -> HttpConnection:
        """Ask the first member. Raises _Failure."""
        place = self._first
        connection, has_begun = await self._connected(place, self._attempt_s), False
        try:
            headers = await self._headers(place, connection, self._attempt_s)
            with trio.move_on_after(self._attempt_s):
                status = await connection.begin(path, body, headers)
                if status != _OK:
                    raise self._refused(place, status, await connection.read(ANSWER_BYTES_MAX))
                has_begun = True
                return connection
            raise self._silent(place, self._attempt_s)
        except (ConnectionLost, MetadataError) as error:
            self._move_on(place)
            raise _Failure(self._as_metadata_error(place, error)) from error
        finally:
            if not has_begun:
                await connection.aclose()

    # --- failures ---

    def _refused(self, place: int, status: int, body: bytes) -> _Failure:
        refusal = refusal_of(status, body)
        if refusal.wants_login and self._token:
            self._token = ""
            return _Failure(refusal.as_error(), did_nothing=True)
        if refusal.is_sure and not refusal.is_of_the_member:
            return _Failure(refusal.as_error(), did_nothing=True, is_final=True)
        self._move_on(place)
        text = f"{self._endpoints[place].address} answered: {refusal.text}"
        kind = MetadataError if refusal.code == 0 and status < 500 else MetadataUnavailable
        return _Failure(kind(text), did_nothing=refusal.is_sure)

    def _silent(self, place: int, waited_s: float) -> _Failure:
        self._move_on(place)
        address = self._endpoints[place].address
        return _Failure(MetadataUnavailable(f"{address} did not answer within {waited_s:.1f} s"))

    def _unusable(self, error: LinnError) -> _Failure:
        """A file of the settings, which may be replaced just now, can't be used."""
        return _Failure(MetadataUnavailable(f"etcd is not asked: {error.text}"), did_nothing=True, is_final=True)

    def _as_metadata_error(self, place: int, error: LinnError) -> MetadataError:
        if isinstance(error, MetadataError):
            return MetadataError(f"{self._endpoints[place].address}: {error.text}")
        return MetadataUnavailable(error.text)

    def _chosen(self) -> int:
        """Return the member to ask: the first one, unless it is silent and another one is not."""
        silent_s = self._env.clock.monotonic() - SILENT_S
        for _ in self._endpoints:
            if not any(asked_s <= silent_s for asked_s in self._owed_s[self._first]):
                break
            self._move_on(self._first)
        return self._first

    @contextmanager
    def _owing(self, place: int) -> Iterator[None]:
        """Note a request that a member has not answered yet."""
        asked_s = self._env.clock.monotonic()
        self._owed_s[place].append(asked_s)
        try:
            yield
        finally:
            self._owed_s[place].remove(asked_s)

    def _move_on(self, place: int) -> None:
        """Ask another member first from now on."""
        if self._first == place:
            self._first = (place + 1) % len(self._endpoints)

    # --- connections ---

    async def _connected(self, place: int, limit_s: float) -> HttpConnection:
        """Return an unused connection, or a new one. Raises _Failure."""
        if self._is_closed:
            raise _Failure(MetadataUnavailable("the store is closed"), did_nothing=True, is_final=True)
        now_s, idle = self._env.clock.monotonic(), self._idle[place]
        while idle:
            connection = idle.pop()
            if now_s - connection.last_used_s < IDLE_S_MAX and connection.is_reusable():
                return connection
            await connection.aclose()
        try:
            with trio.move_on_after(limit_s):
                return await self._connect(self._endpoints[place])
            raise self._silent(place, limit_s)
        except _Failure as failure:
            raise _Failure(failure.error, did_nothing=True) from failure
        except (TlsInvalid, StorageError) as error:
            raise self._unusable(error) from error
        except (ConnectFailed, ConnectionLost, TlsFailed) as error:
            self._move_on(place)
            raise _Failure(MetadataUnavailable(error.text), did_nothing=True) from error

    async def _connect(self, endpoint: Endpoint) -> HttpConnection:
        stream = await self._env.net.connect(endpoint.address)
        if endpoint.tls_host is None:
            return HttpConnection(stream, endpoint.address)
        has_shaken = False
        try:
            try:
                secure = TlsStream(stream, self._tls(), server_name=endpoint.tls_host)
            except ValueError as error:
                raise ConnectFailed(f"{endpoint.tls_host!r} can't be the name in a certificate: {error}") from error
            await secure.handshake(_run)
            has_shaken = True
            return HttpConnection(secure, endpoint.address)
        finally:
            if not has_shaken:
                with trio.CancelScope(shield=True):
                    await stream.aclose()

    def _keep(self, place: int, connection: HttpConnection) -> None:
        """Keep a connection for the next request."""
        if not self._is_closed and connection.is_reusable():
            connection.last_used_s = self._env.clock.monotonic()
            self._idle[place].append(connection)

    async def _headers(self, place: int, connection: HttpConnection, limit_s: float) -> list[tuple[str, str]]:
        """Return the headers of a request, after a login if necessary. Raises _Failure.

        By the first one, a member without a leader refuses at once and does nothing, where it would wait otherwise.
        """
        headers = [("grpc-metadata-hasleader", "true")]
        if self._login is None:
            return headers
        if not self._token:
            try:
                self._token = await self._log_in(connection, limit_s)
            except _Failure:
                self._move_on(place)
                raise
        return [*headers, ("authorization", self._token)]

    async def _log_in(self, connection: HttpConnection, limit_s: float) -> str:
        """Return a new token. Raises _Failure."""
        assert self._login is not None
        try:
            user, password = self._login()
        except SecretUnusable as error:
            raise self._unusable(error) from error
        try:
            with trio.move_on_after(limit_s):
                answer = await connection.ask("/v3/auth/authenticate", login_request(user, password), (), 1 << 16)
                if answer.status == _OK and connection.is_reusable():
                    return decoded(answer.body, TokenAnswer).token
                refusal = refusal_of(answer.status, answer.body)
                refused = MetadataError(f'etcd does not log in the user "{user}": {refusal.text}')
                raise _Failure(refused, did_nothing=True, is_final=refusal.is_sure)
        except (ConnectionLost, MetadataError) as error:
            raise _Failure(MetadataUnavailable(error.text), did_nothing=True) from error
        raise _Failure(MetadataUnavailable(f"no login within {limit_s:.1f} s"), did_nothing=True)

    async def aclose(self) -> None:
        """Close the unused connections, and refuse requests. Idempotent."""
        self._is_closed = True
        for idle in self._idle:
            while idle:
                await idle.pop().aclose()


async def _run(work: Callable[[], None]) -> None:
    """Run a step of a handshake here: it takes a millisecond or two, and connections are kept."""
    work()
