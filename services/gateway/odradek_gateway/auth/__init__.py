"""Who calls over HTTP: bearer tokens, names and passwords, certificates; and acting as the caller."""
