"""A real RabbitMQ with the real data plane of its Knative Broker, as local processes."""
