"""Exchanges of a configuration or a running broker, evaluated without publishing."""
