"""Two brokers prove to each other that they know the cluster's secret: the state machines alone."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from peer_world import Member, members

from linn.cluster.introduction import Dialer, Doorkeeper, is_present
from linn.core.cluster.peers import PeerPlace
from linn.core.errors.peers import PeerRefused, PeerStale
from linn.core.errors.tree import LinnError, ProtocolError, VersionUnsupported
from linn.wire import messages as m
from linn.wire.connection import hello

WELCOME = (1 << 20, 1, 1, 1, 1, 1)


def introduce(
    one: Member, two: Member, *, to: int = 2, bindings: tuple[bytes, bytes] = (b"", b""), nonces: str = "ab"
) -> None:
    """Let broker `one` dial broker `two`. Raises what either side refuses the other with."""
    dialer = Dialer(one, to, one.places[to], nonces[0].encode() * 32, bindings[0])
    door = Doorkeeper(two, nonces[1].encode() * 32, bindings[1])
    admitted = door.admit(dialer.prove(door.challenge(dialer.hello("n1"))))
    assert admitted[:3] == (one.node, one.session, two.session)
    dialer.check(m.PeerWelcome(admitted.proof, *WELCOME))


@pytest.fixture
def two_brokers() -> tuple[Member, Member]:
    known = members(2)
    return known[1], known[2]


def test_brokers_of_one_cluster_let_each_other_in(two_brokers: tuple[Member, Member]) -> None:
    introduce(*two_brokers)
    introduce(*two_brokers, bindings=(b"certificate", b"certificate"))


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"secret": b"another secret, also long"}, PeerRefused, "the proof is wrong"),
        ({"cluster": "mars"}, PeerRefused, "node 1 belongs to cluster mars, this broker to earth"),
        ({"node": 2}, PeerRefused, "both brokers are node 2"),
        ({"node": 3}, PeerStale, "node 3 has another session in the metadata store"),
        ({"session": "older"}, PeerStale, "node 1 has another session in the metadata store"),
        ({"places": {2: PeerPlace("older", "x:1")}}, PeerStale, "node 2 has another session than node 1 knows of"),
        ({"secret": b"short"}, PeerRefused, "less than 16 bytes"),
    ],
)
def test_a_broker_that_is_not_the_one_it_should_be_is_refused_by_name(
    two_brokers: tuple[Member, Member], changes: dict[str, object], error: type[LinnError], text: str
) -> None:
    one, two = two_brokers
    with pytest.raises(error) as raised:
        introduce(replace(one, **changes), two)  # type: ignore[arg-type]
    assert text in raised.value.text


def test_an_address_that_leads_to_the_wrong_broker_is_named(two_brokers: tuple[Member, Member]) -> None:
    one, two = two_brokers
    one.places[3] = PeerPlace("s3", "x:1")
    with pytest.raises(PeerRefused, match="this is node 2, not 3"):
        introduce(one, two, to=3)


def test_a_listener_without_a_session_lets_nobody_in(two_brokers: tuple[Member, Member]) -> None:
    one, two = two_brokers
    with pytest.raises(PeerStale):
        introduce(one, replace(two, session=""))


def test_a_proof_over_another_tls_connection_is_wrong(two_brokers: tuple[Member, Member]) -> None:
    for bindings in ((b"shown by somebody in between", b"ours"), (b"", b"ours"), (b"theirs", b"")):
        with pytest.raises(PeerRefused, match="another TLS connection"):
            introduce(*two_brokers, bindings=bindings)


def test_a_proof_that_is_sent_again_is_worthless_at_the_next_challenge(two_brokers: tuple[Member, Member]) -> None:
    one, two = two_brokers
    dialer, door = Dialer(one, 2, one.places[2], b"a" * 32, b""), Doorkeeper(two, b"b" * 32, b"")
    proof = dialer.prove(door.challenge(dialer.hello("n1")))
    assert door.admit(proof).node == 1
    later = Doorkeeper(two, b"c" * 32, b"")
    later.challenge(dialer.hello("n1"))
    with pytest.raises(PeerRefused, match="an old challenge"):
        later.admit(proof)


def test_a_broker_s_own_proof_is_worthless_to_itself(two_brokers: tuple[Member, Member]) -> None:
    """Somebody whom broker 1 dials sends back to broker 1's listener what broker 1 says, and the other way round."""
    one, _ = two_brokers
    door = Doorkeeper(one, b"b" * 32, b"")
    dialer = Dialer(one, 2, one.places[2], b"a" * 32, b"")
    proof = dialer.prove(door.challenge(dialer.hello("n1")))
    with pytest.raises(PeerRefused, match="both brokers are node 1"):
        door.admit(proof)
    with pytest.raises(PeerRefused, match="node 2 has not proved"):
        dialer.check(m.PeerWelcome(proof.proof, *WELCOME))


@pytest.mark.parametrize("field", ["cluster", "node", "session", "to_node", "to_session", "nonce", "proof"])
def test_a_proof_covers_every_field(two_brokers: tuple[Member, Member], field: str) -> None:
    one, two = two_brokers
    dialer, door = Dialer(one, 2, one.places[2], b"a" * 32, b""), Doorkeeper(two, b"b" * 32, b"")
    proof = dialer.prove(door.challenge(dialer.hello("n1")))
    value = getattr(proof, field)
    other = value + 1 if isinstance(value, int) else ("f" if value[0] != "f" else "e") + value[1:]
    with pytest.raises(PeerRefused, match="the proof is wrong"):
        door.admit(msgspec.structs.replace(proof, **{field: other}))


def test_parts_of_a_proof_can_t_be_moved_into_one_another(two_brokers: tuple[Member, Member]) -> None:
    one, two = two_brokers
    dialer, door = Dialer(one, 2, one.places[2], b"a" * 32, b""), Doorkeeper(two, b"b" * 32, b"")
    proof = dialer.prove(door.challenge(dialer.hello("n1")))
    assert (proof.session, proof.to_node) == ("s1", 2)
    moved = msgspec.structs.replace(proof, session="s", to_node=12)
    with pytest.raises(PeerRefused, match="the proof is wrong"):
        door.admit(moved)


@pytest.mark.parametrize("welcome", [m.PeerWelcome("0" * 64, *WELCOME), m.PeerWelcome("ä", *WELCOME), m.Pong()])
def test_a_listener_that_does_not_know_the_secret_is_refused(
    two_brokers: tuple[Member, Member], welcome: m.Message
) -> None:
    one, two = two_brokers
    dialer, door = Dialer(one, 2, one.places[2], b"a" * 32, b""), Doorkeeper(two, b"b" * 32, b"")
    dialer.prove(door.challenge(dialer.hello("n1")))
    with pytest.raises(PeerRefused, match="node 2 has not proved that it knows the cluster's secret"):
        dialer.check(welcome)


def test_a_client_at_the_listener_for_brokers_is_told_so(two_brokers: tuple[Member, Member]) -> None:
    door = Doorkeeper(two_brokers[1], b"b" * 32, b"")
    with pytest.raises(PeerRefused, match="connect to one for clients"):
        door.challenge(hello("a client"))
    with pytest.raises(VersionUnsupported):
        door.challenge(m.Hello(7, 9, ["peer"], "n9"))
    with pytest.raises(ProtocolError):
        door.challenge(m.Ping())
    with pytest.raises(ProtocolError, match="before the proof"):
        door.admit(m.Administer("topic.list"))


@pytest.mark.parametrize("answer", [m.Challenge(["SCRAM-SHA-256"]), m.PeerChallenge("short"), m.Pong()])
def test_a_broker_that_dials_another_listener_notices(two_brokers: tuple[Member, Member], answer: m.Message) -> None:
    one, _ = two_brokers
    with pytest.raises(PeerRefused, match="does not listen for brokers"):
        Dialer(one, 2, one.places[2], b"a" * 32, b"").prove(answer)


def test_a_refusal_is_raised_as_it_was_sent(two_brokers: tuple[Member, Member]) -> None:
    one, _ = two_brokers
    dialer = Dialer(one, 2, one.places[2], b"a" * 32, b"")
    for step in (dialer.prove, dialer.check):
        with pytest.raises(PeerStale, match="an old one"):
            step(m.Failed("peer.stale", "an old one"))


def test_a_link_is_one_between_present_sessions(two_brokers: tuple[Member, Member]) -> None:
    one, _ = two_brokers
    assert is_present(one, 2, "s2", "s1")
    assert not is_present(one, 2, "older", "s1")
    assert not is_present(one, 2, "s2", "older")
    del one.places[2]
    assert is_present(one, 2, "s2", "s1"), "a node without a session in the store may register again"
