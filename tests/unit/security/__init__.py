"""Authentication, authorization and limits of clients."""
