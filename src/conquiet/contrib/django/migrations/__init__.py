"""Migrations that create the tables of inbox and outbox."""
