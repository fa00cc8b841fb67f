"""Plugins: the hooks, and how plugins are found, loaded and checked."""
