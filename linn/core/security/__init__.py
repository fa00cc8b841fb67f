"""Users, their logins, and their rights."""
