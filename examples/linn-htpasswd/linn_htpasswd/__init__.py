"""linn-htpasswd: users log in with passwords whose hashes are in a file."""
