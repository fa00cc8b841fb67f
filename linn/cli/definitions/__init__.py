"""Export and import of the topics, exchanges and bindings of a broker."""
