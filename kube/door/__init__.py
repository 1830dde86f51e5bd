"""The client of the API server: requests, watches, errors, discovery, access reviews, evictions."""
