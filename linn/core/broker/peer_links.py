"""The links of a broker to the others of its cluster."""

from __future__ import annotations

from linn.core.cluster.membership import NodeMembership
from linn.core.cluster.node import ClusterNode
from linn.core.cluster.peers import SECRET_BYTES_MIN, PeerLinks
from linn.core.config.config import Config
from linn.core.errors.tree import SecretUnusable
from linn.core.gateway.gateway import Gateway
from linn.core.plugins.manager import PluginManager
from linn.core.publish.publisher import Publisher


def link_peers(
    gateway: Gateway, publisher: Publisher, config: Config, node: ClusterNode | None, plugins: PluginManager
) -> PeerLinks | None:
    """Give a gateway its membership and links, and return the links; None: its broker has no listener for brokers.

    Raises SecretUnusable: the secret can't be read, or is too short.
    """
    settings = config.cluster
    if node is None or settings is None or settings.listener is None or settings.secret is None:
        return None
    listener = config.listeners[settings.listener]
    secret = settings.secret.reveal(gateway.env).encode()
    if len(secret) < SECRET_BYTES_MIN:
        raise SecretUnusable(f"cluster.secret: it has less than {SECRET_BYTES_MIN} bytes: take random ones")
    gateway.membership = NodeMembership(node, secret, listener.name, is_tls=listener.tls is not None)
    make = plugins.protocols[listener.protocol].links
    assert make is not None, "the configuration was checked"
    gateway.links = make(gateway)
    publisher.links = gateway.links
    return gateway.links
