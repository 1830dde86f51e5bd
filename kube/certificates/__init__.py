"""Rules for certificates and the objects that contain them, as pure functions; only `lookup` calls the API server."""
