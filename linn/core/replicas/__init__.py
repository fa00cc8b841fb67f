"""Replicas of topics: the logs that this broker has, and its role in them."""
