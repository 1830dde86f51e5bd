"""`make demo`: drains a node, makes it schedulable again, and prints the events as they are delivered."""
