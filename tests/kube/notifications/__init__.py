"""Tests for the rules of the notifications about blocked drains."""
