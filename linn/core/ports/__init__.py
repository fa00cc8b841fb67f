"""Ports that plugins fill: protocol, interceptor, observer. The others are in log, queue and routing."""
