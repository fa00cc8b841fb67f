"""The introduction of two brokers: each proves to the other that it knows the cluster's secret.

    dialer                                      listener
    hello, with the feature `peer`         ->
                                           <-   peerChallenge: a nonce
    peerProof: both brokers, a nonce       ->
                                           <-   peerWelcome: the listener's own proof

A proof is HMAC-SHA-256 over all that the two must agree on: the cluster, both numbers, both sessions, both nonces, and
in TLS the certificate that the dialer was shown (`tls-server-end-point`, RFC 5929). So an old proof is worthless, as
the nonces are fresh; a returned one, as each side signs its own role; one for another broker, as it names its receiver;
and one that a proxy passes on, as it has to show another certificate.

Laws: both are state machines without I/O. Nothing is told about the cluster before the proof is right. Proofs are
compared in constant time. Each side takes each message once, and in order.
"""

from __future__ import annotations

import hmac
from typing import NamedTuple

from linn.core.cluster.peers import SECRET_BYTES_MIN, Membership, PeerPlace
from linn.core.errors.peers import PeerRefused, PeerStale
from linn.core.errors.tree import ProtocolError
from linn.wire import messages as m
from linn.wire.connection import PEER, VERSION, agree
from linn.wire.failure import error_of

NONCE_BYTES = 32
_DIALER, _LISTENER = b"linn peer 1 dialer", b"linn peer 1 listener"
_HEX_CHARACTERS = 64
"""Length of a nonce, and of a proof."""


class Claim(NamedTuple):
    """All that a proof covers."""

    cluster: str
    node: int
    session: str
    to_node: int
    to_session: str
    nonce: str
    challenge: str
    """The listener's nonce."""
    binding: bytes
    """The channel binding of the listener's certificate; b"": without TLS."""


def _proof(secret: bytes, role: bytes, claim: Claim) -> str:
    """Sign a claim. Each part is preceded by its length, so that no two claims have the same bytes."""
    parts = [role]
    for part in claim:
        parts.append(part if isinstance(part, bytes) else str(part).encode(errors="surrogatepass"))
    text = b"".join([len(part).to_bytes(4, "big") + part for part in parts])
    return hmac.digest(secret, text, "sha256").hex()


def _is_right(proof: str, wanted: str) -> bool:
    return hmac.compare_digest(proof.encode(errors="surrogatepass"), wanted.encode())


def _check_secret(membership: Membership) -> None:
    if len(membership.secret) < SECRET_BYTES_MIN:
        raise PeerRefused(f"the cluster's secret has less than {SECRET_BYTES_MIN} bytes")


class Dialer:
    """The introduction of the broker that dials: `hello`, `prove`, `check`, in this order."""

    def __init__(self, membership: Membership, node: int, place: PeerPlace, nonce: bytes, binding: bytes) -> None:
        """
        Args:
            node, place: the broker that should answer.
            nonce: `NONCE_BYTES` random bytes.
            binding: of the certificate that the other side has shown; b"": without TLS.

        Raises PeerRefused: the secret is too short.
        """
        _check_secret(membership)
        self._secret = membership.secret
        session = membership.session
        self._claim = Claim(membership.cluster, membership.node, session, node, place.session, nonce.hex(), "", binding)

    def hello(self, name: str) -> m.Hello:
        """Return the first message. `name`: this broker's."""
        return m.Hello(VERSION, VERSION, [PEER], name)

    def prove(self, message: m.Message) -> m.PeerProof:
        """Answer the challenge. Raises what the other side refuses hello with; PeerRefused: it is no such listener."""
        if isinstance(message, m.Failed):
            raise error_of(message)
        if not isinstance(message, m.PeerChallenge) or len(message.nonce) != _HEX_CHARACTERS:
            raise PeerRefused("the other side does not listen for brokers of a cluster")
        self._claim = claim = self._claim._replace(challenge=message.nonce)
        proof = _proof(self._secret, _DIALER, claim)
        return m.PeerProof(*claim[:6], proof=proof)

    def check(self, message: m.Message) -> m.PeerWelcome:
        """Check the other side's proof.

        Raises what the other side refuses this one with; PeerRefused: it does not know the secret either.
        """
        if isinstance(message, m.Failed):
            raise error_of(message)
        wanted = _proof(self._secret, _LISTENER, self._claim)
        if not isinstance(message, m.PeerWelcome) or not _is_right(message.proof, wanted):
            raise PeerRefused(f"node {self._claim.to_node} has not proved that it knows the cluster's secret")
        return message


class Admitted(NamedTuple):
    """A broker that has proved who it is."""

    node: int
    session: str
    own_session: str
    """The session of this broker that the other one knows."""
    proof: str
    """This broker's own, for the welcome."""


class Doorkeeper:
    """The introduction of the broker that was dialed: `challenge`, then `admit`."""

    def __init__(self, membership: Membership, nonce: bytes, binding: bytes) -> None:
        """
        Args:
            nonce: `NONCE_BYTES` random bytes.
            binding: of this broker's certificate; b"": without TLS.

        Raises PeerRefused: the secret is too short.
        """
        _check_secret(membership)
        self._membership = membership
        self._nonce = nonce.hex()
        self._binding = binding

    def challenge(self, message: m.Message) -> m.PeerChallenge:
        """Answer hello. Raises ProtocolError, VersionUnsupported; PeerRefused: it is a client's."""
        agree(message)
        if not isinstance(message, m.Hello) or PEER not in message.features:
            raise PeerRefused("this listener is for the brokers of a cluster: connect to one for clients")
        return m.PeerChallenge(self._nonce)

    def admit(self, message: m.Message) -> Admitted:
        """Check the proof, and then who it is.

        Raises ProtocolError: another message; PeerRefused; PeerStale: a session is not the present one.
        """
        if not isinstance(message, m.PeerProof):
            raise ProtocolError(f"{type(message).__name__} before the proof of the cluster's secret")
        if len(message.nonce) != _HEX_CHARACTERS:
            raise ProtocolError("a nonce of another length")
        secret, me = self._membership.secret, self._membership
        claimed = message.cluster, message.node, message.session, message.to_node, message.to_session, message.nonce
        claim = Claim(*claimed, self._nonce, self._binding)
        if not _is_right(message.proof, _proof(secret, _DIALER, claim)):
            # It may not know the secret: it is told nothing else.
            raise PeerRefused("the proof is wrong: another secret, an old challenge, or another TLS connection")
        self._check(claim)
        return Admitted(message.node, message.session, me.session, _proof(secret, _LISTENER, claim))

    def _check(self, claim: Claim) -> None:
        """Check that the two brokers mean each other. Raises PeerRefused, PeerStale."""
        me = self._membership
        if claim.cluster != me.cluster:
            raise PeerRefused(f"node {claim.node} belongs to cluster {claim.cluster[:64]}, this broker to {me.cluster}")
        if claim.node == me.node:
            raise PeerRefused(f"both brokers are node {me.node}: one has a wrong number, or dials itself")
        if claim.to_node != me.node:
            raise PeerRefused(f"this is node {me.node}, not {claim.to_node}: an address leads to the wrong broker")
        if not me.session or claim.to_session != me.session:
            raise PeerStale(f"node {me.node} has another session than node {claim.node} knows of")
        place = me.place_of(claim.node)
        if place is None or place.session != claim.session:
            raise PeerStale(
                f"node {claim.node} has another session in the metadata store, as far as node {me.node} knows"
            )


def is_present(membership: Membership, node: int, session: str, own_session: str) -> bool:
    """Whether a link between two sessions is still one between the present ones.

    A node without a session in the store stays linked: it may register again, and the store alone gives its roles away.
    """
    place = membership.place_of(node)
    return own_session == membership.session and (place is None or place.session == session)
