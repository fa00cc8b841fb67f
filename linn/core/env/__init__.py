"""The door to the world: time, randomness, files, network and the process come through `Env`."""
