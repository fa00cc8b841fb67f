"""Logins inside TLS: bound to the certificate, by the client's certificate, and with a password in plain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import linn
import linn.sync
from linn.core.broker.broker import Broker
from linn.core.errors.auth import AuthFailed
from linn.core.security.logins import Identity, Login, Logins
from linn.core.security.sasl.scram import SCRAM, SCRAM_PLUS, make_verifier
from linn.testing.broker_thread import BrokerThread
