"""The HyperConverged kind on a local cluster, as far as the CPU labels need it."""
