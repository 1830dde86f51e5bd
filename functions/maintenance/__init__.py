"""The steps of a node maintenance, one a file, and the modules that these steps share."""
