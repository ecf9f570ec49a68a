"""Ready-made pipelines: `odradek pipeline NAME`, or `python -m pyspark_odradek.pipelines NAME`."""
