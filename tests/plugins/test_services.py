"""Services keep their hook's failure policy: one that fails is logged and marked, and nothing else notices."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest
import trio
from plugin_world import broker_with, client_of
from simulated_time import simulated

from linn.api import Principal, ServiceHost, ServiceKind, ServiceMetric, ServiceTopic, hookimpl
from linn.core.errors.tree import ConfigError, InternalError, PluginError, ServiceFailed, ServiceUnknown
from linn.descriptions import ServiceDescription
from linn.testing.sim_env import SimEnv


class BellSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[bell]`."""

    tone: str = "a"


class BellTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`bell` of a topic."""

    times: int = 1


class Bell:
    """A service that fails where it is told to, once."""

    def __init__(self, settings: BellSettings, host: ServiceHost, plugin: BellPlugin) -> None:
        self.settings, self.host, self.plugin = settings, host, plugin
        self.heard: list[tuple[str, ServiceTopic | None]] = []
        self.ended = trio.Event()
        self.do = trio.Event()

    def _fail(self, where: str) -> None:
        if self.plugin.fails_in == where:
            raise RuntimeError(f"cracked in {where}")

    async def run(self) -> None:
        try:
            if self.plugin.fails_in != "run":
                await self.do.wait()
            self._fail("run")
        finally:
            self.ended.set()

    async def drain(self) -> None:
        self._fail("drain")

    def topic_changed(self, name: str, topic: ServiceTopic | None) -> None:
        self._fail("topic_changed")
        self.heard.append((name, topic))

    def describe(self) -> Any:
        self._fail("describe")
        return {"tone": self.settings.tone, "topics": sorted(self.host.topics())}

    async def perform(self, action: str, arguments: Mapping[str, Any], caller: Principal) -> Any:
        self._fail("perform")
        return [action, dict(arguments), caller.described()]

    def metrics(self) -> Mapping[str, Iterable[tuple[tuple[str, ...], int | float]]]:
        self._fail("metrics")
        return {"linn_bell_rings_total": [((), 7)]}


class BellPlugin:
    """Brings the service `bell`."""

    def __init__(self, fails_in: str = "", **kind: Any) -> None:
        self.fails_in = fails_in
        self.made: list[Bell] = []
        self._kind = kind

    @hookimpl
    def linn_register_service(self) -> ServiceKind:
        metrics = (ServiceMetric("linn_bell_rings_total", "counter", (), "Rings."),)
        kind: dict[str, Any] = {"name": "bell", "topic_table": "bell", "topic_settings": BellTopic, "metrics": metrics}
        kind["check_live"] = lambda settings, table: None
        return ServiceKind(settings=BellSettings, make=self._make, **(kind | self._kind))

    def _make(self, settings: BellSettings, host: ServiceHost) -> Bell:
        if self.fails_in == "make":
            raise RuntimeError("cracked in make")
        self.made.append(Bell(settings, host, self))
        return self.made[-1]


async def listed(env: SimEnv) -> list[ServiceDescription]:
    async with client_of(env) as client:
        found: list[ServiceDescription] = await client.admin.perform("service.list")
        assert msgspec.convert(found, list[ServiceDescription]) == found
        return found


@simulated
async def test_a_service_that_nothing_configures_is_not_made(env: SimEnv) -> None:
    plugin = BellPlugin()
    async with broker_with(env, "[topics.a]\n", bell=plugin):
        assert await listed(env) == []
        async with client_of(env) as client:
            with pytest.raises(ServiceUnknown, match="turns the service"):
                await client.admin.perform("service.perform", service="bell", action="ring")
            with pytest.raises(ServiceUnknown, match='there is no service "bel"'):
                await client.admin.perform("service.perform", service="bel", action="ring")
    assert plugin.made == []


@simulated
async def test_its_own_table_or_that_of_a_topic_makes_one_and_it_hears_of_topics(env: SimEnv) -> None:
    for toml in ('[bell]\ntone = "b"\n', "[topics.a]\nbell = { times = 3 }\n"):
        plugin = BellPlugin()
        async with broker_with(env, toml, bell=plugin):
            (service,) = await listed(env)
            assert (service["name"], service["state"], service["error"]) == ("bell", "running", None)
            assert service["plugin"] == 'plugin "bell" (tests:bell)'
            (bell,) = plugin.made
            assert bell.heard == []
            async with client_of(env) as client:
                await client.admin.perform("topic.create", name="live", settings={"bell": {"times": 2}})
                await client.admin.perform("topic.alter", name="live", settings={"bell": None})
                await client.admin.perform("topic.delete", name="live")
                answer = await client.admin.perform(
                    "service.perform", service="bell", action="ring", arguments={"times": 1}
                )
            assert answer[:2] == ["ring", {"times": 1}]
            names = [name for name, _ in bell.heard]
            own = [topic.own if topic is not None else "gone" for _, topic in bell.heard]
            assert names == ["live"] * 3
            assert own == [BellTopic(times=2), None, "gone"]
        assert bell.ended.is_set()


@pytest.mark.parametrize("where", ["run", "topic_changed", "describe", "perform", "metrics", "drain"])
def test_one_that_fails_is_logged_with_its_plugin_and_all_else_goes_on(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(env: SimEnv) -> None:
        plugin, other = BellPlugin(where), BellPlugin(name="gong", topic_table=None, topic_settings=None, metrics=())
        async with broker_with(env, "[bell]\n[gong]\n[topics.a]\n", bell=plugin, gong=other):
            async with client_of(env) as client:
                await client.admin.perform("topic.create", name="live")
                await client.admin.perform("service.list")
                await client.admin.metrics("linn_bell")
                if where == "perform":
                    with pytest.raises(ServiceFailed, match="cracked in perform"):
                        await client.admin.perform("service.perform", service="bell", action="ring")
                if where != "drain":
                    states = {each["name"]: each for each in await client.admin.perform("service.list")}
                    assert (states["bell"]["state"], states["gong"]["state"]) == ("failed", "running")
                    assert states["bell"]["error"] == f"RuntimeError: cracked in {where}"
                    with pytest.raises(ServiceFailed, match=f"cracked in {where}"):
                        await client.admin.perform("service.perform", service="bell", action="ring")
                    (metric,) = await client.admin.metrics("linn_bell")
                    assert metric["samples"] == []
                async with client.producer("live") as producer:
                    await producer.publish(b"all else goes on")
        assert plugin.made[0].ended.is_set()

    simulated(scenario)()
    (record,) = [record for record in caplog.records if record.name == "linn.service"]
    assert record.levelno == logging.ERROR
    assert 'service "bell", of plugin "bell" (tests:bell), failed' in record.getMessage()
    assert isinstance(record.args, dict)
    assert record.args["code"] == InternalError.code


@simulated
async def test_a_factory_that_fails_stops_a_start_and_later_only_its_service(env: SimEnv) -> None:
    with pytest.raises(PluginError, match=r'plugin "bell".*the factory of "bell" failed.*cracked in make'):
        async with broker_with(env, "[bell]\n", bell=BellPlugin("make")):
            pass


@simulated
async def test_a_factory_that_fails_while_the_broker_runs_harms_nobody(env: SimEnv) -> None:
    async with broker_with(env, "[topics.a]\n", bell=BellPlugin("make")):
        async with client_of(env) as client:
            await client.admin.perform("topic.alter", name="a", settings={"bell": {}})
            (service,) = await client.admin.perform("service.list")
            assert (service["state"], service["status"]) == ("failed", None)
            assert "cracked in make" in service["error"]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ({"name": "topics"}, "has the name of a table of linn itself"),
        ({"topic_table": "retention"}, 'has the table "retention" in topics, which belongs to linn itself'),
        ({"topic_table": "spark_sink"}, 'has the table "spark_sink" in topics, which belongs to the service "spark"'),
        ({"topic_settings": None}, "has a table in topics without settings"),
        ({"name": "spark"}, "which plugin"),
        ({"metrics": (ServiceMetric("linn_topic_records", "gauge", (), "Taken."),)}, "which belongs to linn itself"),
    ],
)
def test_names_that_are_taken_are_refused(kind: dict[str, Any], says: str) -> None:
    async def scenario(env: SimEnv) -> None:
        with pytest.raises(PluginError, match=says):
            async with broker_with(env, "", zzz=BellPlugin(**kind)):
                pass

    simulated(scenario)()


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[bell]\nton = 1\n", r'test.toml:\d+: bell.ton: unknown key; did you mean "tone"'),
        ("[topics.a.bell]\ntime = 1\n", r'topics.a.bell.time: unknown key; did you mean "times"'),
        ("[topics.a]\nbel = {}\n", r'topics.a.bel: unknown key; did you mean "bell"'),
        ("[topics.a]\nbell = 1\n", r"topics.a.bell: must be a table"),
        ("[bel]\n", r'bel: unknown key; did you mean "bell"'),
        ("bell = 1\n[x]\n", r"bell: must be a table|unknown key"),
    ],
)
def test_wrong_keys_are_refused_with_their_place_and_the_nearest_valid_one(toml: str, says: str) -> None:
    async def scenario(env: SimEnv) -> None:
        with pytest.raises(ConfigError, match=says):
            async with broker_with(env, toml, bell=BellPlugin()):
                pass

    simulated(scenario)()


def test_a_check_that_fails_is_an_error_of_its_plugin() -> None:
    def check(*arguments: object) -> None:
        raise RuntimeError("cracked in check")

    async def scenario(env: SimEnv) -> None:
        with pytest.raises(PluginError, match='the check of "bell" failed: RuntimeError: cracked in check'):
            async with broker_with(env, "[bell]\n", bell=BellPlugin(check=check)):
                pass

    simulated(scenario)()


@simulated
async def test_a_table_whose_plugin_is_gone_is_kept_and_has_no_effect(env: SimEnv) -> None:
    storage = ""
    async with broker_with(env, storage, bell=BellPlugin()), client_of(env) as client:
        await client.admin.perform("topic.create", name="a", settings={"bell": {"times": 2}})
    async with broker_with(env, storage), client_of(env) as client:
        assert (await client.admin.topic("a"))["settings"]["bell"] == {"times": 2}  # type: ignore[typeddict-item]
    plugin = BellPlugin()
    async with broker_with(env, storage, bell=plugin):
        (bell,) = plugin.made
        topic = bell.host.topic("a")
        assert topic is not None
        assert topic.own == BellTopic(times=2)
