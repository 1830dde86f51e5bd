"""Pure functions on Kubernetes objects as plain dicts, and the API client in the package `client`."""
