"""Rules for NodeMaintenance objects, as pure functions; only `lookup` calls the API server."""
