"""How a step is served: answers over HTTP, attempts, health, metrics, spans."""
