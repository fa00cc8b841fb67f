"""Everything that is not a plugin, in rooms.

Imports go down only: broker, metrics, admin, publish, topics, plugins, ports, config, queue, groups, routing, log,
loop, env, batch, errors.
"""
