"""A real RabbitMQ and the real data plane of the RabbitMQ Broker for Knative, as local processes."""
