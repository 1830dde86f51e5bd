"""What stays after `make up`: the supervisor, its folder, and how a person looks at it and ends it."""
