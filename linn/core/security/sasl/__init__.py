"""Mechanisms of logins (SASL, RFC 4422) as state machines: bytes in, bytes out. No I/O, clock or randomness."""
