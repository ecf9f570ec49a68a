"""`make test-kubernetes`: tests of the manifests on a real Kubernetes, which is built and started on this machine."""
