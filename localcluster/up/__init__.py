"""The supervisor that keeps running after `make up`, its directory, and the commands that show and stop its cluster."""
