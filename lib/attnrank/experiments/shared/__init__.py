"""What chapters have in common."""
