"""The metadata store "etcd" as a plugin: `store = "etcd"` in `[cluster]`. h11 is loaded when a broker uses it."""

from __future__ import annotations

import ssl
from typing import Annotated

import msgspec

from linn.api import (
    AddressInvalid,
    Env,
    MetadataStore,
    MetadataStoreKind,
    PluginError,
    Secret,
    client_context,
    hookimpl,
    trust,
    use_pair,
)
from linn.metadata_stores.etcd.endpoint import Endpoint

PEM_BYTES_MAX = 1 << 20
ENDPOINTS_MAX = 20
"""Limit of the members to try: etcd itself is run with five, or seven."""


class EtcdSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Further keys of `[cluster]` with `store = "etcd"`."""

    endpoints: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            min_length=1,
            max_length=ENDPOINTS_MAX,
            description="URLs of etcd's members: `http://HOST:PORT`, or `https://` with TLS. When one does not answer, "
            "the next one is asked.",
        ),
    ] = ("http://127.0.0.1:2379",)
    user: Annotated[str, msgspec.Meta(description="User of etcd, if it has authentication. Default: none.")] = ""
    password: Annotated[
        Secret | None,
        msgspec.Meta(
            description='Where the password of `user` is: `{ file = "PATH" }`, `{ env = "NAME" }` or '
            '`{ credential = "NAME" }`.'
        ),
    ] = None
    ca: Annotated[
        str | None,
        msgspec.Meta(
            description="File in PEM with the authorities of etcd's certificates. Default: those of the system."
        ),
    ] = None
    certificate: Annotated[
        str | None, msgspec.Meta(description="File in PEM with the broker's certificate for etcd. Default: none.")
    ] = None
    key: Annotated[
        str | None, msgspec.Meta(description="File in PEM with the certificate's key. Default: `certificate`'s.")
    ] = None

    def __post_init__(self) -> None:
        """Check the URLs, and that a user has a password. Raises ValueError."""
        for url in self.endpoints:
            try:
                Endpoint.of(url)
            except AddressInvalid as error:
                raise ValueError(f"endpoints: {error.text}") from error
        if bool(self.user) != (self.password is not None):
            raise ValueError("has a user without a password, or a password without a user")


def _make(cluster: str, settings: EtcdSettings, env: Env) -> MetadataStore:
    try:
        from linn.metadata_stores.etcd.client import EtcdClient
        from linn.metadata_stores.etcd.store import EtcdStore
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("linn"):
            raise
        text = f'the metadata store "etcd" needs {error.name}, which is not installed: pip install "linn[cluster]"'
        raise PluginError(text) from error

    def login() -> tuple[str, str]:
        assert settings.password is not None, "checked with the user"
        return settings.user, settings.password.reveal(env)

    endpoints = tuple(Endpoint.of(url) for url in settings.endpoints)
    client = EtcdClient(endpoints, env, tls=lambda: _tls_context(settings, env), login=login if settings.user else None)
    return EtcdStore(cluster, client)


def _tls_context(settings: EtcdSettings, env: Env) -> ssl.SSLContext:
    """Read the files of TLS, at each connection, so that renewed ones are found. Raises TlsInvalid, StorageError."""
    context = client_context()
    if settings.ca is None:
        context.load_default_certs()
    else:
        trust(context, env.disk.read_named(settings.ca, PEM_BYTES_MAX), "ca")
    if settings.certificate is not None:
        certificate = env.disk.read_named(settings.certificate, PEM_BYTES_MAX)
        key = env.disk.read_named(settings.key or settings.certificate, PEM_BYTES_MAX, private=True)
        use_pair(context, certificate, key)
    return context


@hookimpl
def linn_register_metadata_store() -> MetadataStoreKind:
    """Register etcd."""
    return MetadataStoreKind("etcd", EtcdSettings, _make)
