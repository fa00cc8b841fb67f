"""Administration: the verbs that show and change topics, exchanges and groups while the broker runs."""
