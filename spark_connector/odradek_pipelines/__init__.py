"""Ready-made Spark pipelines. `odradek pipeline NAME` or `python -m odradek_pipelines NAME` runs one of them."""
