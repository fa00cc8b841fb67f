"""The machine at the other end of a connection, as limits count it."""

from __future__ import annotations

import ipaddress


def machine_of(peer: str) -> str:
    """Return the machine at the other end of a connection; "": this one, over a Unix socket or a loopback address.

    Of an IPv6 address the first 64 bits count, since one machine may have all addresses of such a network.
    """
    if peer.startswith("unix:"):
        return ""
    host = peer.rpartition(":")[0]
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:  # A simulated machine has a name.
        return host
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)
