"""Everything that is not a plugin, in rooms.

Imports go down only: broker, plugins, gateway, admin, metrics, connections, publish, topics, ports, config, queue,
groups, routing, log, loop, env, batch, errors.
"""
