"""Real Knative Eventing as local processes next to a local cluster, with the product on it."""
