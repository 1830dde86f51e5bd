"""The steps of a node maintenance, one per module, and their supporting modules."""
