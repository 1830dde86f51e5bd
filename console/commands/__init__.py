"""The commands of `kubectl maintenance`, one a file."""
