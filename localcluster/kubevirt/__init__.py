"""KubeVirt on a local cluster, as far as the live migration of virtual machines needs it."""
