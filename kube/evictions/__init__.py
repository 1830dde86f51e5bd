"""The eviction engine: evicts pods as PodDisruptionBudgets and this project's own limits allow.

- `planner` decides which pods to evict now, with pure functions.
- `executor` executes a plan, and returns an `EvictionOutcome`.
- `tracker` sends each eviction, and keeps it until a pass has collected its outcome.
- `limiters` decides when the next eviction may start.
- `requests` builds an eviction request, and interprets the API server's refusal.
"""
