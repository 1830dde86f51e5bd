"""Pure functions on Kubernetes objects, which are plain dicts, and `client`, the API client package."""
