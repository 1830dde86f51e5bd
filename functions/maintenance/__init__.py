"""The steps of a NodeMaintenance, one a file, and what they share."""
