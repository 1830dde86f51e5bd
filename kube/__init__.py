"""Rules for Kubernetes objects as plain dicts, and `client`, the package with the API client."""
