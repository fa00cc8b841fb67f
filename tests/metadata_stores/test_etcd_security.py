"""Real etcd with users and with TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from etcd_process import Etcd, running_etcd
from tls_world import authority, pair, write_pair

from linn.core.env.real.env import RealEnv
from linn.core.env.secret import Secret
from linn.core.errors.metadata import MetadataError, MetadataUnavailable
from linn.core.metadata.store import MetadataStore
from linn.metadata_stores.etcd.plugin import EtcdSettings, linn_register_metadata_store


def make_store(settings: EtcdSettings) -> MetadataStore:
    return linn_register_metadata_store().make("secure", settings, RealEnv())


def add_user(etcd: Etcd, name: str, role: str) -> None:
    etcd.members[0].ask("/v3/auth/user/add", {"name": name, "password": f"{name}-secret"})
    etcd.members[0].ask("/v3/auth/user/grant", {"user": name, "role": role})


async def test_a_user_of_etcd_may_do_what_its_role_says(tmp_path: Path) -> None:
    def settings(user: str, password: str) -> EtcdSettings:
        path = tmp_path / f"password-{user}-{password}"
        path.touch(0o600)
        path.write_text(password)
        return EtcdSettings(endpoints=etcd.urls, user=user, password=Secret(file=str(path)))

    with running_etcd(tmp_path / "etcd") as etcd:
        member = etcd.members[0]
        prefix = {"key": "L2xpbm4vc2VjdXJlLw==", "range_end": "L2xpbm4vc2VjdXJlMA=="}  # /linn/secure/
        for role in ("root", "linn", "other"):
            member.ask("/v3/auth/role/add", {"name": role})
        member.ask("/v3/auth/role/grant", {"name": "linn", "perm": {"permType": "READWRITE", **prefix}})
        for user in ("root", "linn", "other"):
            add_user(etcd, user, user)
        member.ask("/v3/auth/enable", {})
        store = make_store(settings("linn", "linn-secret"))
        async with store.watch() as watch:
            revision = await store.put_all({"a": 1}, {})
            assert (await watch.next()).revision == revision
        lease = await store.grant_lease(60.0)
        await store.put_all({"b": 1}, {}, lease)
        await store.renew_lease(lease)
        # etcd forgets its tokens when it ends.
        member.kill()
        await trio.to_thread.run_sync(etcd.start)
        with trio.fail_after(60):
            assert set((await store.load()).entries) == {"a", "b"}
            await store.put_all({"a": 2}, {})
        await store.aclose()
        for wrong, words in (
            (settings("linn", "wrong"), "authentication failed"),
            (settings("other", "other-secret"), "permission denied"),
            (EtcdSettings(endpoints=etcd.urls), "user name is empty"),
        ):
            refused = make_store(wrong)
            for ask in (refused.load, lambda store=refused: store.put_all({"a": 1}, {})):
                with pytest.raises(MetadataError, match=words) as caught:
                    await ask()
                assert type(caught.value) is MetadataError
            await refused.aclose()


async def test_it_speaks_tls_with_etcd_and_shows_its_certificate(tmp_path: Path) -> None:
    write_pair(tmp_path, *pair("127.0.0.1", "localhost"))
    (tmp_path / "ca.pem").write_bytes(authority("tests").cert_pem.bytes())
    (tmp_path / "strangers.pem").write_bytes(authority("strangers").cert_pem.bytes())
    files: dict[str, Any] = {"certificate": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}
    flags = [
        "--cert-file", files["certificate"], "--key-file", files["key"],
        "--client-cert-auth", "--trusted-ca-file", str(tmp_path / "ca.pem"),
    ]  # fmt: skip
    with running_etcd(tmp_path / "etcd", flags=flags, scheme="https") as etcd:
        store = make_store(EtcdSettings(endpoints=etcd.urls, ca=str(tmp_path / "ca.pem"), **files))
        with trio.fail_after(60):
            while True:
                try:
                    revision = await store.put_all({"a": 1}, {})
                except MetadataUnavailable:  # It starts.
                    await trio.sleep(0.1)
                else:
                    break
        async with store.watch() as watch:
            assert watch.snapshot.revision == revision
            revision = await store.put_all({"a": 2}, {})
            assert (await watch.next()).revision == revision
        await store.aclose()
        for settings in (
            EtcdSettings(endpoints=etcd.urls, ca=str(tmp_path / "strangers.pem"), **files),
            EtcdSettings(endpoints=etcd.urls, ca=str(tmp_path / "ca.pem")),
        ):
            stranger = make_store(settings)
            with pytest.raises(MetadataUnavailable):
                await stranger.load()
            await stranger.aclose()
