"""Rules for the notifications about blocked drains."""
