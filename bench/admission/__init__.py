"""Latency of the admission webhook for the API server, compared with a webhook that checks nothing."""
