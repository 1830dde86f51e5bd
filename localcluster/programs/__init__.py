"""Third-party programs: the toolchain that builds the servers, files of Go modules, and the system's packages."""
