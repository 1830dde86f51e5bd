"""The supervisor that runs after `make up`, its state directory, and the commands that show or stop its cluster."""
