"""Generator of the feature tables of CPU models."""
