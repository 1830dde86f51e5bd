"""The commands of `kubectl maintenance`, one module each."""
