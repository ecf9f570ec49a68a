"""Token buckets that delay who asks too much."""
