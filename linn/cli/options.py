"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_URL = "linn://127.0.0.1:5466"

Url = Annotated[
    str, typer.Option("--url", envvar="LINN_URL", metavar="URL", help="URL of the broker.", show_envvar=True)
]
CA_HELP = "File in PEM with the authorities to trust, for a URL that begins with linns://. Default: the system's."
USER_HELP = "User to log in as. LINN_PASSWORD_FILE names a file with the password; on a terminal it is asked for."
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
CountMax = Annotated[int | None, typer.Option("--count", min=1, metavar="COUNT", help="Stop after so many messages.")]
Where = Annotated[
    str | None,
    typer.Option("--where", metavar="PREDICATE", help="Only messages that match the predicate: 'label.delay > 60'."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print how many messages would be moved.")]
Rate = Annotated[str | None, typer.Option("--rate", metavar="RATE", help="Maximum rate: 100/s, 6000/m, 5/h.")]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="text: the value on a line; json: all fields on a line; pretty: all fields, indented, for people; or a "
        'template: "{time} {offset} {label.origin} {value}".',
    ),
]
Raw = Annotated[
    bool,
    typer.Option(
        "--raw",
        help="On a terminal, print text as it is. By default control characters are escaped there; pipes and files get "
        "every byte either way.",
    ),
]
Time = Annotated[bool, typer.Option("--time", help="With --format text: print the local time before each value.")]
