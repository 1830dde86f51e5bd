"""KubeVirt on a local cluster, limited to the live migration of virtual machines."""
