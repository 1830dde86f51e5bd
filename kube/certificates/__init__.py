"""Rules for certificates and the objects that hold them, as pure functions; only `lookup` calls the API server."""
