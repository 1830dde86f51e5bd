"""Tests of the complete chain of events with the component `notifications`."""
