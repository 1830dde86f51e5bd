"""Selects the product's components for a local cluster, and provides what each component requires."""
