"""The world as it is, behind the ports of `linn.core.env.env`."""
