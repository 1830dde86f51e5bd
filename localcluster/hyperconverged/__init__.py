"""The kind HyperConverged on a local cluster, with the fields that the CPU labels need."""
