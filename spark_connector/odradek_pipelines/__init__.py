"""Ready-made Spark pipelines, which `odradek pipeline NAME` or `python -m odradek_pipelines NAME` runs."""
