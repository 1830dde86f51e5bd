"""Rules for the announcements and notifications about blocked drains."""
