"""`linn roles`: list, describe, create, alter and delete roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.completion import role_names
from linn.cli.confirm import confirm
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url, Yes
from linn.cli.render.console import print_json, print_result
from linn.cli.render.table import number, print_table
from linn.cli.session import with_client

if TYPE_CHECKING:
    from linn.client.client import Client
    from linn.descriptions import RoleDescription

app = noun("List, describe, create, alter and delete roles.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the role.", autocompletion=role_names)]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the role.")]
_SYNTAX = "RESOURCE=OPERATION,...: topic:orders=publish, or 'topic:orders.*=see,browse' in quotes, or broker=see"
Rules = Annotated[list[str], typer.Argument(metavar="RULE...", help=f"Rules: {_SYNTAX}.")]
NewRules = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RULE]...", help=f"New rules, or operations for resources that have a rule: {_SYNTAX}."),
]
Removed = Annotated[
    list[str] | None,
    typer.Option("--remove", metavar="RESOURCE", help="Remove the rule of a resource. May be repeated."),
]


@app.command("list")
def list_roles(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List all roles with their numbers of rules."""
    roles = with_client(url, lambda client: client.admin.roles())
    if as_json:
        print_json(roles)
        return
    rows = [[role["role"], f"{len(role['rules']):,}", ", ".join(role["rules"]), _source(role)] for role in roles]
    print_table(["role", number("rules"), "about", "from"], rows)


def _source(role: RoleDescription) -> str:
    if role["role"] == "administrator":
        return "linn"
    return "the file" if role["in_file"] else "a command"


@app.command("describe")
def describe(name: Name, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show the rules of one role."""
    role = with_client(url, lambda client: client.admin.role(name))
    if as_json:
        print_json(role)
        return
    rows = [[resource, ", ".join(operations)] for resource, operations in role["rules"].items()]
    print_table(["resource", "operations"], rows, f"{name}, from {_source(role)}")


@app.command("create")
def create(name: NewName, rules: Rules, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Create a role. If it exists with the same rules, nothing happens.

    A rule is a resource, an equals sign, and the operations that it allows, with commas. Put quotes around a rule with
    a *, which a shell would take as a pattern of file names: 'topic:orders.*=publish'.
    """
    arguments = {"name": name, "rules": _parsed(rules)}
    done = with_client(url, lambda client: client.admin.perform("role.create", **arguments))
    text = f"created {name}" if done["created"] else f"{name} exists with these rules"
    print_result({"created": done["created"]}, text, as_json=as_json)


@app.command("alter")
def alter(
    name: Name, rules: NewRules = None, remove: Removed = None, url: Url = DEFAULT_URL, as_json: Json = False
) -> None:
    """Change rules of a role; a rule that is not named stays as it is. A rule replaces that of the same resource.

    Rights that are taken have ended when the command returns, also for clients that are connected.
    """
    if not (rules or remove):
        raise typer.BadParameter("name at least one RULE to change, or --remove")
    done = with_client(url, lambda client: _alter(client, name, _parsed(rules or []), remove or []))
    text = f"changed {name}" if done["changed"] else f"{name} has these rules already"
    print_result({"changed": done["changed"]}, text, as_json=as_json)


async def _alter(client: Client, name: str, changed: dict[str, list[str]], removed: list[str]) -> Any:
    rules: dict[str, list[str]] = (await client.admin.role(name))["rules"]
    for resource in removed:
        if resource not in rules:
            raise typer.BadParameter(f"{name} has no rule for {resource}", param_hint="--remove")
    kept = {resource: operations for resource, operations in rules.items() if resource not in removed}
    return await client.admin.perform("role.alter", name=name, rules=kept | changed)


@app.command("delete")
def delete(name: Name, yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Delete a role that no user has."""
    if not yes:
        confirm(url, "role.delete", f"Delete the role {name}?", "not deleted", name=name)
    with_client(url, lambda client: client.admin.delete_role(name))
    print_result({"deleted": name}, f"deleted {name}", as_json=as_json)


def _parsed(rules: list[str]) -> dict[str, list[str]]:
    """Return operations by resource. Raises BadParameter."""
    found: dict[str, list[str]] = {}
    for rule in rules:
        resource, equals, operations = rule.rpartition("=")
        if not (equals and resource and operations):
            raise typer.BadParameter(f"a rule is RESOURCE=OPERATION,... such as topic:orders=publish: {rule!r:.80}")
        found.setdefault(resource, []).extend(operation.strip() for operation in operations.split(","))
    return found
