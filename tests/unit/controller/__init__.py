"""What the controller decides, without a clock, a wire or a disk."""
