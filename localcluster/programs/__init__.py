"""What is not ours: the toolchain that builds the servers, the files of their modules, the packages of the system."""
