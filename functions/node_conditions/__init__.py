"""Step that publishes the state of a maintenance as conditions on its node."""
