"""PodSource: a Knative ContainerSource that watches the pods and disruption budgets of nodes under maintenance."""
