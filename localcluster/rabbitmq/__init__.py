"""A real RabbitMQ server and the data plane of Knative's RabbitMQ Broker, as local processes."""
