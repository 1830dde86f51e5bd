"""Real nodes: kubelets that run containers, each in its own namespaces, which the kernel removes with the node."""
