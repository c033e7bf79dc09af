"""Programs that are killed at any moment, and go on as if they had not been."""
