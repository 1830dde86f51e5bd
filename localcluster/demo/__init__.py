"""`make demo`: drains a node and makes it schedulable again, and prints the events as they are delivered."""
