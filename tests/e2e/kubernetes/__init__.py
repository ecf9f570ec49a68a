"""Tests of the manifests on a real Kubernetes, which is built and started on this machine:

`make test-kubernetes`.
"""
