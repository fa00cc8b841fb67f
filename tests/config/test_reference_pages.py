from __future__ import annotations

import inspect
from pathlib import Path

import msgspec
import pytest
from reference_pages.settings import configuration_page, hooks, hooks_page

from linn.core.config.decoder import meta_of
from linn.core.config.service_tables import topic_tables
from linn.core.config.tables import TABLES
from linn.core.config.topic_settings import BindingSettings
from linn.core.plugins.manager import built_in
from linn.spark_plugin.service.settings import PipelineSettings

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_the_configuration_page_is_what_the_settings_say() -> None:
    page = (REFERENCE / "configuration.md").read_text()
    assert page == configuration_page(built_in()), "run: python tests/reference_pages configuration"


def test_the_hooks_page_is_what_the_hookspecs_say() -> None:
    page = (REFERENCE / "hooks.md").read_text()
    assert page == hooks_page(), "run: python tests/reference_pages hooks"
    assert all(f"\n## {hook}\n" in page for hook in hooks())


@pytest.mark.parametrize("name", hooks())
def test_every_hook_states_its_failure_policy(name: str) -> None:
    assert "Failure policy: " in inspect.cleandoc(hooks()[name].__doc__ or "")


def all_settings() -> list[type[msgspec.Struct]]:
    kinds = built_in()
    brought = [*kinds.engines.values(), *kinds.semantics.values(), *kinds.exchanges.values(), *kinds.protocols.values()]
    services = [kind.settings for kind in kinds.services.values()]
    tables = topic_tables(kinds.services.values()).values()
    ours = [*TABLES.values(), BindingSettings, *services, *tables, PipelineSettings]
    return [*ours, *(kind.settings for kind in brought if kind.settings is not None)]


def test_every_setting_has_one_line_of_help() -> None:
    for settings in all_settings():
        for field in msgspec.structs.fields(settings):
            lines = [meta.description for meta in meta_of(field) if meta.description]
            assert len(lines) == 1, f"{settings.__name__}.{field.name}"
            assert "\n" not in lines[0]
            assert lines[0].endswith("."), f"{settings.__name__}.{field.name}"


def test_every_setting_is_on_the_configuration_page() -> None:
    page = (REFERENCE / "configuration.md").read_text()
    names = {field.encode_name for settings in all_settings() for field in msgspec.structs.fields(settings)}
    assert [name for name in sorted(names - {"arguments", "rules", "services"}) if f"| `{name}` |" not in page] == []
