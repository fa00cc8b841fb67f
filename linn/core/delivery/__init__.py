"""Consuming: its vocabulary, deliveries and settlements, and the ports of the consumers that the gateway hands out."""
