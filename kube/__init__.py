"""The cluster, said in dicts. Only `api` imports the `kubernetes` package; everything beside the doors is pure."""
