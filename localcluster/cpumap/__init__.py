"""Where the feature tables of CPU models come from."""
