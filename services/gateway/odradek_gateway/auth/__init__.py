"""Who calls, what one caller may use, and acting as the caller."""
