"""The functions: each consumes an event and returns the events that follow from it; `app` registers and serves them."""
