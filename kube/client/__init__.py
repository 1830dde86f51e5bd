"""The API client: requests, watches, errors, discovery, access reviews and evictions."""
