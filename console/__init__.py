"""What a person touches: the command line. Every command is a file of its name."""
