"""The components of the product that are installed on a local cluster, and what each of them needs."""
