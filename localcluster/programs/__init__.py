"""Provides third-party binaries: builds them from Go modules, or finds them in the system's packages."""
