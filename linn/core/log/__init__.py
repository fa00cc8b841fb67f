"""A partition's log: the port for storage engines, the log's one writer, and its readers."""
