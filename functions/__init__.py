"""The functions: each step consumes an event and returns the events that follow; `app` lists and serves them."""
