"""The links of a broker to the others of its cluster."""

from __future__ import annotations

from linn.core.admin.administration import Administration
from linn.core.cluster.membership import NodeMembership
from linn.core.cluster.peers import SECRET_BYTES_MIN
from linn.core.config.config import Config
from linn.core.errors.tree import SecretUnusable
from linn.core.gateway.gateway import Gateway
from linn.core.plugins.manager import PluginManager
from linn.core.publish.publisher import Publisher


def link_peers(
    gateway: Gateway, publisher: Publisher, administration: Administration, config: Config, plugins: PluginManager
) -> None:
    """Give these parts of a broker the links to others, if it has a listener for them.

    Raises SecretUnusable: the secret can't be read, or is too short.
    """
    settings, node = config.cluster, administration.cluster
    if node is None or settings is None or settings.listener is None or settings.secret is None:
        return
    listener = config.listeners[settings.listener]
    secret = settings.secret.reveal(gateway.env).encode()
    if len(secret) < SECRET_BYTES_MIN:
        raise SecretUnusable(f"cluster.secret: it has less than {SECRET_BYTES_MIN} bytes: take random ones")
    gateway.membership = NodeMembership(node, secret, listener.name, is_tls=listener.tls is not None)
    make = plugins.protocols[listener.protocol].links
    assert make is not None, "the configuration was checked"
    gateway.links = make(gateway)
    gateway.followed_logs = administration.replication
    publisher.links = administration.links = gateway.links
    if gateway.transactions is not None:
        gateway.transactions.links = gateway.links.transacting()
