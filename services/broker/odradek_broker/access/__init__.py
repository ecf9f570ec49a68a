"""Authentication and authorization of clients: SASL, principals, ACLs, and quotas."""
