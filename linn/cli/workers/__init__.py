"""Workers: several brokers on one machine that share ports and topics, below a supervisor (`linn serve --workers`)."""
