"""The metadata store "etcd": its messages without I/O, HTTP/1.1 by h11, its members, and the store."""
