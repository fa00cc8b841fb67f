"""Logins inside TLS: bound to the certificate, by the client's certificate, and with a password in plain."""

from __future__ import annotations
