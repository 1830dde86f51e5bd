"""Rules for virtual machines on a drained node, as pure functions; only the module `lookup` calls the API server."""
