"""The conformance suite of services: `ServiceConformance`, to subclass.

    class TestBackup(ServiceConformance):
        @pytest.fixture
        def harness(self) -> ServiceHarness:
            return ServiceHarness(linn_register_service(), '[backup]\\nto = "elsewhere"', modules=("my_backup.plugin",))

Law: a test does not know the purpose of the service; it checks the promises on which the broker relies, in virtual
time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import trio

import linn
from linn.core.config.decoder import meta_of
from linn.core.errors.tree import RequestUnknown
from linn.core.ports.service import ServiceKind
from linn.testing.deterministic import run_simulation
from linn.testing.plugin_broker import URL, plugin_broker
from linn.testing.sim_env import SimEnv
from linn.testing.sim_programs import SimPrograms

LIFE_S = 300.0
"""Virtual time in which a service must act."""
STOP_S_MAX = 60.0
"""Time limit for a broker's stop: drain_timeout once for services and once for clients, and a margin."""
_SETTINGS = '[broker]\ndata_dir = "data"\ndefault_storage = "dram"\n'


@dataclass(frozen=True)
class ServiceHarness:
    """Service, and a configuration that enables it."""

    kind: ServiceKind
    toml: str
    """Tables besides `[broker]`."""
    modules: tuple[str, ...] = ()
    """The plugin's modules, if it is not built in."""
    install: Callable[[SimPrograms], None] = lambda programs: None
    """Install the programs that the service runs."""


class ServiceConformance:
    """The promises of `linn.core.ports.service`. A subclass gives the fixture `harness`."""

    def test_every_setting_has_a_line_of_help(self, harness: ServiceHarness) -> None:
        for settings in (harness.kind.settings, harness.kind.topic_settings):
            for field in msgspec.structs.fields(settings) if settings is not None else ():
                assert [meta.description for meta in meta_of(field) if meta.description], field.name

    def test_its_metrics_have_a_help_and_begin_with_linn(self, harness: ServiceHarness) -> None:
        for metric in harness.kind.metrics:
            assert metric.name.startswith("linn_"), metric.name
            assert metric.help, metric.name
            assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name

    def test_it_is_not_there_unless_something_configures_it(self, harness: ServiceHarness) -> None:
        async def scenario(env: SimEnv) -> None:
            async with plugin_broker(env, _SETTINGS, *harness.modules), linn.connect(URL, env=env) as client:
                assert await client.admin.perform("service.list") == []
            assert env.programs.started == []

        _run(harness, scenario)

    def test_it_runs_and_describes_itself_and_its_samples_fit_its_metrics(self, harness: ServiceHarness) -> None:
        async def scenario(env: SimEnv) -> None:
            async with plugin_broker(env, _SETTINGS + harness.toml, *harness.modules) as broker:
                await env.clock.sleep(LIFE_S)
                (running,) = [
                    candidate for candidate in broker.services.running if candidate.kind.name == harness.kind.name
                ]
                assert (running.state, running.error) == ("running", None)
                assert running.service is not None
                json.dumps(running.service.describe(), allow_nan=False)
                labels = {metric.name: len(metric.labels) for metric in harness.kind.metrics}
                for name, samples in running.service.metrics().items():
                    assert name in labels, f"{name} is not among the kind's metrics"
                    assert all(len(values) == labels[name] for values, _ in samples), name

        _run(harness, scenario)

    def test_an_action_that_it_does_not_have_is_refused_and_does_no_harm(self, harness: ServiceHarness) -> None:
        async def scenario(env: SimEnv) -> None:
            toml = _SETTINGS + harness.toml
            async with plugin_broker(env, toml, *harness.modules), linn.connect(URL, env=env) as client:
                with pytest.raises(RequestUnknown):
                    await client.admin.perform("service.perform", service=harness.kind.name, action="no-such-action")
                assert await _state(client, harness) == "running"

        _run(harness, scenario)

    def test_topics_may_come_change_and_go(self, harness: ServiceHarness) -> None:
        async def scenario(env: SimEnv) -> None:
            toml = _SETTINGS + harness.toml
            async with plugin_broker(env, toml, *harness.modules), linn.connect(URL, env=env) as client:
                for kind in ("queue", "stream", "both"):
                    await client.admin.create_topic("made-live", kind=kind)
                    await client.admin.alter_topic("made-live", partitions=3)
                    await env.clock.sleep(1)
                    await client.admin.perform("topic.delete", name="made-live")
                assert await _state(client, harness) == "running"

        _run(harness, scenario)

    @pytest.mark.parametrize("after_s", [0.0, LIFE_S])
    def test_a_broker_stops_in_time_and_leaves_no_program_behind(self, harness: ServiceHarness, after_s: float) -> None:
        async def scenario(env: SimEnv) -> None:
            async with plugin_broker(env, _SETTINGS + harness.toml, *harness.modules):
                await env.clock.sleep(after_s)
                began_s = env.clock.monotonic()
            assert env.clock.monotonic() - began_s <= STOP_S_MAX
            assert env.programs.running == 0

        _run(harness, scenario)

    @pytest.mark.parametrize("after_s", [0.0, LIFE_S])
    def test_a_broker_that_dies_leaves_no_program_behind(self, harness: ServiceHarness, after_s: float) -> None:
        async def scenario(env: SimEnv) -> None:
            async def life(env: SimEnv) -> None:
                async with plugin_broker(env, _SETTINGS + harness.toml, *harness.modules):
                    await trio.sleep_forever()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(env.run_until_death, life)
                await env.clock.sleep(after_s + 1)
                env.kill()
            assert env.programs.running == 0

        _run(harness, scenario)


async def _state(client: linn.client.Client, harness: ServiceHarness) -> str:
    services: list[dict[str, Any]] = await client.admin.perform("service.list")
    return next(str(service["state"]) for service in services if service["name"] == harness.kind.name)


def _run(harness: ServiceHarness, scenario: Callable[[SimEnv], Any]) -> None:
    async def with_programs(env: SimEnv) -> None:
        harness.install(env.programs)
        await scenario(env)

    run_simulation(0, with_programs)
