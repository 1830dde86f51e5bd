"""The components of the product that are installed on a local cluster, and the requirements of each component."""
