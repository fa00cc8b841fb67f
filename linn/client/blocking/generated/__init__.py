"""Classes of the blocking client, generated from the async client by `python tests/client/blocking_facade.py`."""
