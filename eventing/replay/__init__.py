"""Replays recorded events, compares the responses with the recorded ones, and redrives dead letters."""
