"""The API client: requests, watches, errors, discovery and access reviews."""
