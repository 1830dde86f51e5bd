"""Rules of the upgrade mutex, which runs Jobs before and after each worker node's upgrade, one node at a time.

All modules contain pure functions, except for `lookup`, which calls the API server.
"""
