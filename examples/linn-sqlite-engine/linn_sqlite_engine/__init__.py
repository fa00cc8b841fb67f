"""linn-sqlite-engine: a partition's log in a SQLite database, to be looked into with any tool that knows SQL."""
