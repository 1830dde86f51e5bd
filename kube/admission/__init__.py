"""Rules of admission: what is refused at the door, what is warned of, and the review that asks. Pure."""
