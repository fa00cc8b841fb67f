"""Consuming: its words, deliveries and settlements, and the ports of the consumers that the gateway hands out."""
