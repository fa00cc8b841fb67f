"""`linn plugins new`: write the package of a new plugin, from the templates in `linn/cli/plugin_skeletons`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from linn import __version__
from linn.cli.options import Json
from linn.cli.render.console import print_result
from linn.core.errors.texts import nearest, one_line
from linn.core.errors.tree import ConfigExists, ConfigUnreadable

KINDS = {
    "assignor": "assigns a group's partitions: `assignor =` of a group",
    "authenticator": "checks passwords or tokens: `methods =` of a listener",
    "authorizer": "decides on rights without a role: `authorizer =` of the broker",
    "engine": "stores logs: `storage =` of a topic",
    "exchange": "chooses topics for a message: `type =` of an exchange",
    "format": "reads and writes the bodies of another protocol's batches",
    "interceptor": "changes or drops messages: `interceptors =` of a topic",
    "metadata-store": "holds the state of a cluster: `store =` of the cluster",
    "observer": "is told when topics and connections come and go",
    "order": "chooses the next of a queue's ready records: `order =` of a topic",
    "partitioner": "chooses partitions for messages: `partitioner =` of a topic",
    "protocol": "speaks with clients: `protocol =` of a listener",
    "semantics": "says how a queue delivers: `delivery =` of a topic",
    "service": "runs beside the broker: a table of its own, and one in each topic",
}
"""Purpose of a plugin of each kind, and the key in TOML that names it, if any."""
_KIND_LINES = "\n".join(f"- {kind}: {does}" for kind, does in KINDS.items())

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name in TOML: small letters, digits and single hyphens.")]
Kind = Annotated[str, typer.Option("--kind", metavar="KIND", help="Kind of the plugin, as listed above.")]
Into = Annotated[
    str, typer.Option("--into", metavar="FOLDER", help="Parent of the new folder, which is named linn-NAME.")
]


HELP = f"""Write a package with a working plugin: code, tests that pass, README and entry point.

Never overwrites anything. KIND is one of

{_KIND_LINES}
"""


def new(name: Name, kind: Kind, into: Into = ".", as_json: Json = False) -> None:
    """Write the package; `HELP` is the help text of the command."""
    if kind not in KINDS:
        near = nearest(kind, KINDS)
        hint = f' (did you mean "{near}"?)' if near else ""
        text = f"there is no kind {kind[:40]!r}{hint}; the kinds are\n{_KIND_LINES}"
        raise typer.BadParameter(text, param_hint="--kind")
    problem = name_problem(name)
    if problem is not None:
        raise typer.BadParameter(problem, param_hint="NAME")
    skeleton = PluginSkeleton(name, kind)
    folder = skeleton.write(into)
    steps = f"`pip install -e '{folder}[dev]'` lets linn find it; then `cd {folder} && pytest` runs its tests"
    print_result(
        {"folder": folder, "files": list(skeleton.files())},
        f"wrote {folder}, with the {kind} {name}; {steps}",
        as_json=as_json,
    )


NAME_CHARACTERS_MAX = 60
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class Facts(NamedTuple):
    """Differences between the kinds, beside their code."""

    noun: str
    does: str
    suite: str
    toml: str


_ORDERS = "[topics.orders]\n"
FACTS = {
    "assignor": Facts(
        "assignor",
        "one member of a group reads a topic, and the others wait to take over.",
        "linn.testing.assignors.AssignorConformance",
        _ORDERS + 'kind = "stream"\npartitions = 4\n\n[groups.billing]\nassignor = "@NAME@"',
    ),
    "authenticator": Facts(
        "authenticator",
        "robots log in with tokens, of which a file has the hashes.",
        "linn.testing.authenticators.AuthenticatorConformance",
        '[listeners.local]\naddress = "unix:/run/linn/linn.sock"\nlogin = "required"\nmethods = ["@NAME@"]\n\n'
        '[authenticators.@NAME@]\nfile = "/etc/linn/tokens"\n\n' + _ORDERS.rstrip(),
    ),
    "authorizer": Facts(
        "authorizer",
        "everybody may read the topics whose names begin with `public.`.",
        "linn.testing.authorizers.AuthorizerConformance",
        '[broker]\nauthorizer = "@NAME@"\n\n[topics."public.news"]\nkind = "stream"\n\n'
        + _ORDERS.rstrip(),
    ),
    "engine": Facts(
        "storage engine",
        "it keeps logs in memory, up to a size.",
        "linn.testing.engines.EngineConformance",
        _ORDERS + 'storage = "@NAME@"',
    ),
    "exchange": Facts(
        "exchange type",
        "a binding matches the routing keys that begin with its key.",
        "linn.testing.exchanges.ExchangeConformance",
        '[exchanges.spread]\ntype = "@NAME@"\n\n'
        + _ORDERS
        + '[[topics.orders.bindings]]\nexchange = "spread"\nkey = "orders."',
    ),
    "format": Facts(
        "format",
        "a body is values behind their lengths, and one time for all.",
        "linn.testing.formats.FormatConformance",
        _ORDERS.rstrip(),
    ),
    "interceptor": Facts(
        "interceptor",
        "it adds a header to every message before it is stored.",
        "linn.testing.interceptors.InterceptorConformance",
        _ORDERS + 'interceptors = ["@NAME@"]',
    ),
    "metadata-store": Facts(
        "metadata store",
        "it keeps values in memory, for brokers of one process.",
        "linn.testing.metadata_stores.MetadataStoreConformance",
        '[cluster]\nname = "trial"\nnode = 1\nstore = "@NAME@"\n\n' + _ORDERS.rstrip(),
    ),
    "observer": Facts(
        "observer",
        "it counts topics and connections, and logs what it hears.",
        "linn.core.ports.observer.Observer",
        _ORDERS.rstrip(),
    ),
    "order": Facts(
        "order",
        "the youngest record is delivered first.",
        "linn.testing.orders.OrderConformance",
        _ORDERS + 'order = "@NAME@"',
    ),
    "partitioner": Facts(
        "partitioner",
        "keys that are the same up to their first slash share a partition.",
        "linn.testing.partitioners.PartitionerConformance",
        _ORDERS + 'partitions = 4\npartitioner = "@NAME@"',
    ),
    "protocol": Facts(
        "protocol",
        "clients say HELLO, PING and PUBLISH TOPIC TEXT in lines.",
        "linn.testing.protocols.ProtocolConformance",
        '[listeners.native]\n\n[listeners.lines]\nprotocol = "@NAME@"\naddress = "127.0.0.1:5467"\n\n'
        + _ORDERS.rstrip(),
    ),
    "semantics": Facts(
        "delivery semantics",
        "it delivers at least once, with a bound on the records of one lease.",
        "linn.testing.semantics.SemanticsConformance",
        '[delivery.@NAME@]\nlease_records_max = 100\n\n' + _ORDERS + 'delivery = "@NAME@"',
    ),
    "service": Facts(
        "service",
        "it counts, and logs the topics that ask for it.",
        "linn.testing.services.ServiceConformance",
        '[@NAME@]\ninterval = "30s"\n\n' + _ORDERS + '@NAME@-count = { unit = "orders" }',
    ),
}  # fmt: skip


def name_problem(name: str) -> str | None:
    """Explain why a text can't be the name of a plugin; None if it can."""
    if len(name) > NAME_CHARACTERS_MAX or not _NAME.fullmatch(name):
        return "must be small letters, digits and single hyphens, and begin with a letter"
    if name.startswith("linn-") or name == "linn":
        return f'is the name in TOML, without "linn-": the package will be called linn-{name.removeprefix("linn-")}'
    return "is taken by what linn brings itself" if name in _own_names() else None


def _own_names() -> set[str]:
    """Return the names of linn's own plugins and kinds, which other plugins can't use."""
    from linn.core.plugins.manager import built_in

    ours = built_in()
    brought = (
        ours.engines,
        ours.semantics,
        ours.exchanges,
        ours.partitioners,
        ours.orders,
        ours.assignors,
        ours.protocols,
        ours.interceptors,
        ours.authenticators,
        ours.authorizers,
        ours.metadata_stores,
        ours.formats,
        ours.services,
    )
    return {*ours.plugin_names, *(name for kinds in brought for name in kinds)}


class PluginSkeleton:
    """Package of a plugin of one kind."""

    def __init__(self, name: str, kind: str) -> None:
        facts = FACTS[kind]
        self._kind = kind
        self._module = "linn_" + name.replace("-", "_")
        self._distribution = f"linn-{name}"
        self._facts = facts
        self._words = {
            "TOML": facts.toml,
            "DOES": facts.does,
            "SUITE": facts.suite,
            "KIND": facts.noun,
            "ARTICLE": "An" if facts.noun[0] in "aeiou" else "A",
            "NAME": name,
            "CLASS": "".join(part.capitalize() for part in name.split("-")),
            "MODULE": self._module,
            "DISTRIBUTION": self._distribution,
            "VERSION": __version__,
        }

    def files(self) -> dict[str, str]:
        """Return the text of each file by its path in the package's folder."""
        kind = self._kind.replace("-", "_")
        return {
            "pyproject.toml": self._filled("pyproject.toml"),
            "README.md": self._filled("README.md"),
            f"{self._module}/__init__.py": self._filled("package.py"),
            f"{self._module}/plugin.py": self._filled(f"{kind}.py"),
            f"tests/test_{self._module}.py": self._filled(f"test_{kind}.py"),
        }

    def _filled(self, template: str) -> str:
        from importlib.resources import files as resources

        text = (resources("linn.cli") / "plugin_skeletons" / f"{template}.txt").read_text(encoding="utf-8")
        # In this order: the text of a word may contain a later word.
        for word, value in self._words.items():
            text = text.replace(f"@{word}@", value)
        return text

    def write(self, into: str) -> str:
        """Write all files, and return their folder. Raises ConfigExists, ConfigUnreadable."""
        folder = Path(into) / self._distribution
        try:
            folder.mkdir(parents=True)
            for place, text in self.files().items():
                path = folder / place
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
        except FileExistsError as error:
            raise ConfigExists(f"{one_line(str(folder))} exists; nothing was changed") from error
        except OSError as error:
            raise ConfigUnreadable(f"{one_line(str(folder))}: can't be written: {error.strerror}") from error
        return str(folder)
