"""This broker as a node of a cluster: its session, its view of the metadata, and the controller."""
