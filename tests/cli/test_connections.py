"""`linn connections`: who is connected."""

import json

import linn.sync


def test_a_client_is_listed_while_it_is_there(quick, broker) -> None:
    with linn.sync.connect(broker.url) as watching:
        before = {one["number"] for one in watching.admin.connections()}
        with linn.sync.connect(broker.url) as client:
            (mine,) = [one for one in client.admin.connections() if one["number"] not in before]
            assert (mine["listener"], mine["protocol"]) == ("native", "capnp")
            assert min(mine["received_bytes"], mine["sent_bytes"]) > 0
            assert mine["open_s"] >= 0
            listed = {one["number"]: one["peer"] for one in json.loads(quick("connections", "--json").stdout)}
            assert listed[mine["number"]] == mine["peer"]
            assert mine["peer"] in quick("connections").stdout
        # The broker sees that a client is gone when its turn comes.
        lists = ({one["number"] for one in watching.admin.connections()} for _ in range(10_000))
        assert any(mine["number"] not in numbers for numbers in lists)
