"""The functions: steps that take an event in and answer with events; `app` lists and serves them."""
