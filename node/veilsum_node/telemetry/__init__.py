"""What a process tells its operator: logs, health, and metrics over an authenticated listener. Never a record's value."""
