"""What KubeVirt brings to a cluster, as far as virtual machines that migrate need it."""
