"""Who speaks, and what they may do: SASL, principals, authorizer."""
