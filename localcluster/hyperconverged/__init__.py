"""What HyperConverged brings to a cluster, as far as the labels of CPUs need it."""
