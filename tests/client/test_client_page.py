from __future__ import annotations

import re
from pathlib import Path
from typing import is_typeddict

import pytest
from public_names import public_classes, public_members

import linn.client
import linn.descriptions
import linn.sync

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "client.md").read_text(encoding="utf-8")


DESCRIPTIONS = [public for public in vars(linn.descriptions).values() if is_typeddict(public)]


@pytest.mark.parametrize("public", [*public_classes(linn.client), *public_classes(linn.sync), *DESCRIPTIONS])
def test_every_public_member_is_on_the_client_page(public: type) -> None:
    fields = [name for one in public.__mro__ for name in vars(one).get("__annotations__", {}) if name[0] != "_"]
    names = {public.__name__, *fields, *public_members(public)}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", PAGE)] == []
