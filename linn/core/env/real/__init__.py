"""The real world, behind the ports of `linn.core.env.env`."""
