"""The manifests on a real Kubernetes, which these tests build and start on this machine: `make test-kubernetes`."""
