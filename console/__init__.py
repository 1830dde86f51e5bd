"""The user interfaces: the commands of `kubectl maintenance` and the web console, on shared operations."""
