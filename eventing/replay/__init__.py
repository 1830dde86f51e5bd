"""Replays recorded events, compares the answers with the recorded ones, and redrives dead letters."""
