"""The user interfaces: the `kubectl maintenance` commands and the web console, which share operations."""
