"""linn-own-names: each user has the resources whose names begin with the user's name."""
