"""The supervisor process of `make up`, its state directory, and the commands that show or stop its cluster."""
