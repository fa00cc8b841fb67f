"""`python -m linn_htpasswd USER [ROLE,ROLE]` asks for a password and prints the user's line."""

from __future__ import annotations

import getpass
import sys

from linn.api import RealEnv
from linn_htpasswd.password_file import line_of

if __name__ == "__main__":
    user, roles = (*sys.argv[1:3], "")[:2]
    print(line_of(user, getpass.getpass(), RealEnv().rng.bytes(16), roles))
