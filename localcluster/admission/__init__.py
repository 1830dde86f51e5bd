"""The admission webhook of a local cluster: its server process, its certificate, and its registration."""
