"""Terminal output and command-line options of the commands."""
