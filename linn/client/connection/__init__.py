"""The client's connection to a broker: opening it, requests and answers, the network."""
