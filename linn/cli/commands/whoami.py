"""`linn whoami`: the user of this command, to a broker."""

from __future__ import annotations

from linn.cli.options import DEFAULT_URL, Json, Url
from linn.cli.render.console import print_json
from linn.cli.session import with_client
from linn.core.errors.texts import one_line


def whoami(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Print the user of this command to the broker, how it logged in, and its roles."""
    found = with_client(url, lambda client: client.admin.whoami())
    if as_json:
        print_json(found)
        return
    roles = ", ".join(found["roles"]) or "none"
    print(one_line(f"{found['user']}, login: {found['login']}, roles: {roles}"))
