"""Real nodes: kubelets that run containers. Each node has its own Linux namespaces, which the kernel cleans up."""
