"""The plugins that decide about logins and rights, made as the configuration names them."""

from __future__ import annotations

from linn.core.config.config import Config
from linn.core.env.env import Env, Spawn
from linn.core.plugins.manager import PluginManager
from linn.core.ports.authenticator import Authenticator
from linn.core.ports.authorizer import Authorizer
from linn.core.security.authenticators import BoundAuthenticator
from linn.core.security.authority import Authority


def made_authenticators(config: Config, plugins: PluginManager, env: Env) -> dict[str, BoundAuthenticator]:
    """Make the authenticators that listeners name. Raises PluginError."""
    found = dict[str, BoundAuthenticator]()
    for listener in config.listeners.values():
        for name in listener.login.methods:
            configured = config.authenticators.get(name)
            if configured is None or name in found:
                continue
            kind = plugins.authenticators[configured.kind]
            made: Authenticator = plugins.make(kind, configured.settings, env)
            found[name] = BoundAuthenticator(name, kind.mechanisms, made.authenticate, plugins.blamed)
    return found


def made_authority(config: Config, plugins: PluginManager, env: Env, spawn: Spawn) -> Authority | None:
    """Make the authorizer, and what asks it; None: there is none. Raises PluginError."""
    if config.broker.authorizer is None:
        return None
    configured = config.authorizers[config.broker.authorizer]
    made: Authorizer = plugins.make(plugins.authorizers[configured.kind], configured.settings, env)
    return Authority(made.may, env.clock.monotonic, spawn, plugins.blamed)
