"""`linn users`: list, describe, create, alter and delete users, and make verifiers of passwords."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.completion import role_names, user_names
from linn.cli.confirm import confirm
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url, Yes
from linn.cli.render.console import print_json, print_result
from linn.cli.render.table import print_settings, print_table
from linn.cli.session import with_client

if TYPE_CHECKING:
    from linn.descriptions import UserDescription

app = noun("List, describe, create, alter and delete users.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.", autocompletion=user_names)]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
Roles = Annotated[
    list[str] | None,
    typer.Option("--role", metavar="ROLE", help="Role of the user. May be repeated.", autocompletion=role_names),
]
AddRoles = Annotated[
    list[str] | None,
    typer.Option("--add-role", metavar="ROLE", help="Give a role. May be repeated.", autocompletion=role_names),
]
RemoveRoles = Annotated[
    list[str] | None,
    typer.Option("--remove-role", metavar="ROLE", help="Take a role. May be repeated.", autocompletion=role_names),
]
Password = Annotated[
    bool,
    typer.Option("--password", help="Set a password: ask for it twice, or read a line of stdin if it is a pipe."),
]
PasswordFile = Annotated[
    str | None, typer.Option("--password-file", metavar="FILE", help="Set the password to the first line of a file.")
]
Verifier = Annotated[
    str | None,
    typer.Option("--scram", metavar="VERIFIER", help="Set a password by its verifier, from `linn users verifier`."),
]
Certificate = Annotated[
    str | None, typer.Option("--certificate", metavar="NAME", help="URI or DNS name in the user's certificate.")
]
Uid = Annotated[
    int | None,
    typer.Option("--uid", metavar="NUMBER", help="The user's id on the broker's machine, for Unix sockets."),
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="KEY=NUMBER",
        help="Limit of all connections of the user together: receive_bytes_per_s, send_bytes_per_s, requests_per_s or "
        "connections_max; or of those with the same client name: client_receive_bytes_per_s, client_send_bytes_per_s, "
        "client_requests_per_s. May be repeated.",
    ),
]


@app.command("list")
def list_users(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List all users with their roles and the ways in which they log in."""
    users = with_client(url, lambda client: client.admin.users())
    if as_json:
        print_json(users)
        return
    if not users:
        print("no users yet: linn users create NAME --role ROLE --password")
        return
    rows = [[user["user"], ", ".join(user["roles"]), ", ".join(_ways_in(user)), _source(user)] for user in users]
    print_table(["user", "roles", "logs in by", "from"], rows)


def _ways_in(user: UserDescription) -> list[str]:
    ways = {"password": user["has_password"], "certificate": user["certificate"], "uid": user["uid"] is not None}
    return [way for way, has in ways.items() if has]


def _source(user: UserDescription) -> str:
    return "the file" if user["in_file"] else "a command"


@app.command("describe")
def describe(name: Name, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show the roles of one user, and the facts for logging in. The password is not shown."""
    user = with_client(url, lambda client: client.admin.user(name))
    if as_json:
        print_json(user)
        return
    shown = {
        "roles": ", ".join(user["roles"]) or "none",
        "password": "set" if user["has_password"] else "none",
        "certificate": user["certificate"] or "none",
        "uid": "none" if user["uid"] is None else str(user["uid"]),
        **user["limits"],
        "from": _source(user),
    }
    print_settings(shown, name)


@app.command("create")
def create(
    name: NewName,
    role: Roles = None,
    password: Password = False,
    password_file: PasswordFile = None,
    scram: Verifier = None,
    certificate: Certificate = None,
    uid: Uid = None,
    limit: Limits = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Create a user. If it exists with the same settings, nothing happens.

    The password does not leave this machine: the broker gets a verifier, which tells whether a password is right. Each
    verifier is another one, so that a user with a password can't be created twice. Who logs in with a token needs none
    of the options besides roles.
    """
    facts = _facts(_verifier(password, password_file, scram), certificate, uid, limit)
    arguments = {"name": name, "roles": role or [], **facts}
    done = with_client(url, lambda client: client.admin.perform("user.create", **arguments))
    text = f"created {name}" if done["created"] else f"{name} exists with these settings"
    print_result({"created": done["created"]}, text, as_json=as_json)


@app.command("alter")
def alter(
    name: Name,
    add_role: AddRoles = None,
    remove_role: RemoveRoles = None,
    password: Password = False,
    password_file: PasswordFile = None,
    scram: Verifier = None,
    certificate: Certificate = None,
    uid: Uid = None,
    limit: Limits = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Change a user. What no option names stays as it is.

    A password is removed by --scram "", a certificate by --certificate "", a uid by --uid -1, a limit by --limit KEY=0.

    Roles and rights that are taken have ended when the command returns, also for clients that are connected.
    """
    facts = _facts(_verifier(password, password_file, scram), certificate, uid, limit)
    if not (facts or add_role or remove_role):
        raise typer.BadParameter("name at least one option to change")
    roles = {"add_roles": add_role or [], "remove_roles": remove_role or []}
    done = with_client(url, lambda client: client.admin.perform("user.alter", name=name, **roles, **facts))
    text = f"changed {name}" if done["changed"] else f"{name} has these settings already"
    print_result({"changed": done["changed"]}, text, as_json=as_json)


@app.command("delete")
def delete(name: Name, yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Delete a user, who may do nothing from then on."""
    if not yes:
        confirm(url, "user.delete", f"Delete the user {name}?", "not deleted", name=name)
    with_client(url, lambda client: client.admin.delete_user(name))
    print_result({"deleted": name}, f"deleted {name}", as_json=as_json)


@app.command("verifier")
def verifier(password_file: PasswordFile = None, as_json: Json = False) -> None:
    """Ask for a password, and print its verifier, for `scram =` of a `[users.NAME]` in the configuration file.

    The verifier is no password, but it helps to guess at one: keep the file from other users.
    """
    made = _verifier(password_file is None, password_file, None)
    print_result({"scram": made}, str(made), as_json=as_json)


def _facts(scram: str | None, certificate: str | None, uid: int | None, limits: list[str] | None) -> dict[str, Any]:
    """Return the arguments that options give. Raises BadParameter."""
    from linn.cli.typed_value import named_values

    named = None if limits is None else named_values(limits, "KEY=NUMBER")
    given = {"scram": scram, "certificate": certificate, "uid": uid, "limits": named}
    return {key: value for key, value in given.items() if value is not None}


def _verifier(asks: bool, file: str | None, scram: str | None) -> str | None:
    """Return the verifier of the password that the options name; None if there is none. Raises BadParameter."""
    if asks + (file is not None) + (scram is not None) > 1:
        raise typer.BadParameter("give one of --password, --password-file and --scram")
    if not asks and file is None:
        return scram
    from linn.cli.new_password import new_verifier

    return new_verifier(file)
