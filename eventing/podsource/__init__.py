"""PodSource, the one part that stays: watches the pods and budgets of nodes under maintenance."""
