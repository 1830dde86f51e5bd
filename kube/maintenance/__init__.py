"""Rules for NodeMaintenance objects, as pure functions; only the module `lookup` calls the API server."""
