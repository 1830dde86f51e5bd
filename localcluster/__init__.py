"""Real Kubernetes servers as local processes, for `make up`, the demos and the tests. The product never imports it."""
