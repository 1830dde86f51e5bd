"""The admission webhook of a local cluster: its server, its certificate, and the API server calling it."""
