"""Who may do what: logins, authorization and quotas, for both wires."""
