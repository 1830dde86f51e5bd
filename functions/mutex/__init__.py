"""The steps of the upgrade mutex, and the modules that they are made of."""
