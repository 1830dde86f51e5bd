"""Events and their transport: the vocabulary, the local delivery, PodSource, the journal, replay."""
