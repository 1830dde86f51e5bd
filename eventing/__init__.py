"""What flows and how it is carried: the event vocabulary, the sources, the local delivery, the journal."""
