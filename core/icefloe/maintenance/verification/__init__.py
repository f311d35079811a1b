"""What a healthy repository looks like, check by check."""
