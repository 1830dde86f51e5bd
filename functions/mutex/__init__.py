"""The steps of the upgrade mutex, and their supporting modules."""
