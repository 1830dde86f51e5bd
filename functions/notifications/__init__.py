"""The step `notify-owners`, which notifies the owners of workloads that block a drain."""
