"""What people look at, made from records alone."""
