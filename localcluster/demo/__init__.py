"""`make demo`: the main job from start to end, with the events as they flow."""
