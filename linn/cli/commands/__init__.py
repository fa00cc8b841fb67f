"""Commands of `linn`, one file each."""
