"""The rules of replication for one group of logs, without I/O: leader, follower, and the change between them.

`tests/models/replication.py` searches them; `replica` names them.
"""
