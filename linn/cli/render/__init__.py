"""Output of commands: tables, progress bars, screens, and messages as text."""
