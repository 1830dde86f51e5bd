"""Rules about Kubernetes objects on plain dicts, and `door`, the one way to the API server."""
