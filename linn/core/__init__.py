"""All of the broker that is not a plugin, in layered packages.

Imports go down only: broker, plugins, gateway, admin, metrics, services, connections, publish, transactions,
replicas, topics, cluster, ports, config, queue, groups, routing, delivery, log, metadata, loop, env, security, batch,
errors.
"""
