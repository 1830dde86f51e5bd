"""Real Knative Eventing as local processes, with the product installed on it."""
