"""How a step is served over HTTP: requests, answers, attempts, health, metrics, spans."""
