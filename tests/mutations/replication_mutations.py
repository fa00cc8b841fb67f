"""Bugs in the rules of replication: one for each rule, found by what is lost or never ends."""

from __future__ import annotations

from mutation import Mutation

_LEADER = "linn.core.log.replication.leader"
_MATCHING = "linn.core.log.replication.matching"
_REPLICA = "linn.core.log.replication.replica"
_PARTITION = "linn.core.log.partition"
_CONFIRMED = "What a confirmation means"
_DISK = "What is on the disk stays right"
_CHANGES = "[what is committed never changes]"
_MEMBERS = "[a member of the in-sync set has all that is committed]"


def _bug(name: str, breaks: str, module: str, original: str, planted: str, seed: int, says: str) -> Mutation:
    guarantee = _DISK if module in (_MATCHING, _PARTITION) else _CONFIRMED
    return Mutation(name, breaks, guarantee, module, original, planted, "replication", seed, says)


REPLICATION_MUTATIONS = (
    _bug(
        "the watermark waits for nobody",
        "Committed is what all members of the in-sync set hold.",
        _LEADER,
        "if member != self._node:",
        "if member == 0:",
        1,
        _MEMBERS,
    ),
    _bug(
        "a leader counts what is not synced",
        "A leader counts what is durable by the topic's policy, like its followers.",
        _LEADER,
        "offset = log.durable",
        "offset = log.log.bounds()[1]",
        298,
        _MEMBERS,
    ),
    _bug(
        "a removal counts before it is done",
        "A member that is removed counts until the store has made the change.",
        _LEADER,
        "self._counted = self.part.isr | added.keys()",
        "self._counted = (self.part.isr | added.keys()) - removed",
        13,
        _MEMBERS,
    ),
    _bug(
        "an addition counts when it is known",
        "A member that is added counts from before the change is asked for.",
        _LEADER,
        "self._counted = self.part.isr | added.keys()",
        "self._counted = self.part.isr",
        46,
        _MEMBERS,
    ),
    _bug(
        "a member is added before it holds the watermark",
        "A member that is added holds what is committed.",
        _LEADER,
        "return bool(peer.session) and self._may_follow(node) and holds and self._is_recovered()",
        "return bool(peer.session) and self._may_follow(node) and self._is_recovered()",
        1,
        _MEMBERS,
    ),
    _bug(
        "a member is added before the watermark has reached the end of the election",
        "A new leader does not know what is committed, until its watermark has reached the end of its log.",
        _LEADER,
        "return bool(peer.session) and self._may_follow(node) and holds and self._is_recovered()",
        "return bool(peer.session) and self._may_follow(node) and holds",
        648,
        _MEMBERS,
    ),
    _bug(
        "acknowledgements from before the cut count",
        "A follower that was matched anew has what it acknowledges since then.",
        _LEADER,
        "peer.session, peer.heard_s, peer.silent_s, peer.ends = session, now_s, silent_s, {}",
        "peer.session, peer.heard_s, peer.silent_s = session, now_s, silent_s",
        103,
        "which ends at",
    ),
    _bug(
        "an unknown outcome is taken for a refusal",
        "A change whose outcome is unknown counts both ways.",
        _LEADER,
        "self._is_unknown = True",
        "self._settle(self.part)",
        46,
        _MEMBERS,
    ),
    _bug(
        "an older view of the store counts",
        "What a leader knows of the store never goes back.",
        _LEADER,
        "elif part.revision > self.part.revision:",
        "elif part.revision != self.part.revision:",
        841,
        _MEMBERS,
    ),
    _bug(
        "a change of unknown outcome is forgotten",
        "A change whose outcome is unknown is tried again until it is known.",
        _LEADER,
        """
            else:  # It may still be made; tried again, it can't be made twice.
                self.commands.append(self._change)
        """,
        "",
        76,
        "[after the faults all nodes are in sync]",
    ),
    _bug(
        "a follower is not cut",
        "A follower cuts off what its leader does not have.",
        _MATCHING,
        "return Cut(shared)",
        "return Cut(following.end)",
        85,
        _MEMBERS,
    ),
    _bug(
        "a follower is cut to its watermark",
        "A follower keeps what it shares with its leader, though it has not heard that it is committed.",
        _PARTITION,
        "await self._replace_records(self.log.trim(after=after))",
        "await self._replace_records(self.log.trim(after=min(after, self.committed.offset)))",
        19,
        _MEMBERS,
    ),
    _bug(
        "a restarted leader leads on",
        "A leader leads in the session in which it was elected.",
        _REPLICA,
        "if part.leader == self.node and part.session == self.session:",
        "if part.leader == self.node:",
        0,
        "[an epoch has one leader]",
    ),
)
