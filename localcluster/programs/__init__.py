"""Provides third-party binaries: builds the servers from Go modules, or finds them in the system's packages."""
