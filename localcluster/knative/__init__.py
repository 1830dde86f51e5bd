"""Real Knative Eventing as local processes beside a local cluster, and the product on it."""
