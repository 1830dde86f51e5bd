"""The validating webhook: asked by the API server before a NodeMaintenance is created."""
