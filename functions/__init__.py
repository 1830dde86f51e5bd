"""What happens: one step a file, event in, events out. `app` serves them."""
