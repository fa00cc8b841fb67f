"""A partition's log: the port that storage engines fill, its one writer, and what is read from it."""
