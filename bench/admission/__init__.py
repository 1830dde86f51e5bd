"""How long the API server waits for the webhook, beside a server that judges nothing."""
