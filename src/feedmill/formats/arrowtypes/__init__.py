"""What every type of Arrow is in a sample."""
