"""`linn can`: tell whether a user may do something, and by which roles."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.completion import operations, user_names
from linn.cli.options import DEFAULT_URL, Json, Url
from linn.cli.render.console import print_result
from linn.cli.session import with_client

User = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.", autocompletion=user_names)]
Operation = Annotated[
    str, typer.Argument(metavar="OPERATION", help="Operation, such as publish.", autocompletion=operations)
]
Resource = Annotated[
    str, typer.Argument(metavar="RESOURCE", help="Resource, such as topic:orders; the broker is only broker.")
]


def can(subject: User, operation: Operation, resource: Resource, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Tell whether a user may do something, and by which roles. Ends with 1 if not."""
    answer = with_client(url, lambda client: client.admin.can(subject, operation, resource))
    if answer["roles"]:
        text = f"yes: {', '.join(answer['roles'])}"
    elif answer["allowed"]:
        text = "yes: an authorizer allows it, or there are neither roles, users nor logins"
    else:
        text = "no"
    print_result(answer, text, as_json=as_json)
    if not answer["allowed"]:
        raise typer.Exit(1)
