"""Metadata stores of clusters, as plugins."""
