"""All that talks to the API server."""
