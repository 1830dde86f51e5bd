"""Which wings of the product are put on a local cluster, and what each brings along."""
