"""Real nodes: kubelets that run containers, each in namespaces of its own, of which the kernel leaves nothing."""
