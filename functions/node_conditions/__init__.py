"""The step `publish-conditions`, which publishes the state of a maintenance as conditions of its node."""
