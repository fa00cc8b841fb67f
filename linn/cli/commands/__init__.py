"""The commands of `linn`, one file each."""
