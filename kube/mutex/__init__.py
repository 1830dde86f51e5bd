"""Rules of the upgrade mutex: Jobs before and behind the upgrade of each worker node, one node at a time. Pure."""
