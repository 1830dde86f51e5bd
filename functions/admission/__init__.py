"""The validating admission webhook, which the API server calls before it creates a NodeMaintenance."""
