"""Services that plugins bring, run beside the broker."""
