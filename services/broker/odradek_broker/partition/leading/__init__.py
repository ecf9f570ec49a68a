"""What a replica does while it leads: clients' requests, followers, the in-sync replicas, the watermark."""
