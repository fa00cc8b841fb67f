"""An order for linn's queues: the youngest record is delivered first."""
