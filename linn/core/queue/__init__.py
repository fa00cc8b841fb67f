"""Queues: the state machine of a shared subscription, its leases, redelivery, dead letters and consumers."""
