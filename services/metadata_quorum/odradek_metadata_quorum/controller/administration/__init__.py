"""What operators command: configs, access, quotas, features."""
