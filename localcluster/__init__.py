"""Real Kubernetes servers as local processes, for `make up`, the demo and the tests; the product never imports this."""
