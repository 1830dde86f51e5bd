"""Rules for Kubernetes objects as plain dicts, and `door`, the package with the API client."""
