"""Services of plugins, run beside the broker."""
