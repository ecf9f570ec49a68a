"""A broker process that may open only 500 files, and cannot raise the limit (`ulimit -n 500`)."""

from __future__ import annotations

import resource
import runpy

DESCRIPTORS_MAX = 500

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS_MAX, DESCRIPTORS_MAX))
    runpy.run_module("odradek_broker", run_name="__main__")
