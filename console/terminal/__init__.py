"""Command-line options and terminal output, which the commands share."""
