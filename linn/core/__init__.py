"""All of the broker that is not a plugin, in layered packages.

Imports go down only: broker, plugins, gateway, admin, metrics, connections, publish, topics, ports, config, queue,
groups, routing, log, loop, env, batch, errors.
"""
