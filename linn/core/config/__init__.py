"""The configuration: TOML in, frozen structs out, every problem with its file, line and key."""
