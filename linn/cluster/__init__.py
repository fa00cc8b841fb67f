"""Links between the brokers of a cluster: the proof of its secret, lanes, and verbs that another broker carries out."""
