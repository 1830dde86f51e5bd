"""Real nodes: kubelets that run containers, each in its own namespaces, so that the kernel cleans up after it."""
