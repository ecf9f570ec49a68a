"""Ready-made pipelines: `odradek pipeline NAME`, or `python -m odradek_pipelines NAME`."""
