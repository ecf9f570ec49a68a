"""Tests of authentication, authorization and the limits for clients."""
