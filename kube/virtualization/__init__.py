"""Rules for virtual machines on a drained node, as pure functions; only `lookup` calls the API server."""
