"""What can be configured."""
