"""Plugins: the hooks, and finding, loading and checking plugins."""
