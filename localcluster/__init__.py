"""Runs real Kubernetes servers as local processes, for `make up`, the demos and the tests, not for the product."""
