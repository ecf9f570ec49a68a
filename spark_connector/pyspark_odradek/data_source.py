"""The data source that Spark sees. Each method imports the heavy modules that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark_odradek.source_options import SourceOptions


class OdradekDataSource(DataSource):
    """`format("odradek")`: options, schema and offsets of Spark's Kafka source and sink.

    Spark pickles it, and makes readers and writers from it in several processes, so it holds options only.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "odradek"

    def schema(self) -> StructType:
        """Return all columns, including headers if includeHeaders is set. `.schema(...)` may choose fewer.

        Spark calls this at `load`, so wrong options are refused there, as by Spark's Kafka source.
        """
        from pyspark_odradek.source_options import check_source_options, source_schema

        return source_schema(include_headers=check_source_options(self.options).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for `spark.read`."""
        from pyspark_odradek.batch_reader import OdradekBatchReader

        return OdradekBatchReader(self._source_options(schema, is_streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader for `spark.readStream`."""
        from pyspark_odradek.stream_reader import OdradekStreamReader

        return OdradekStreamReader(self._source_options(schema, is_streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer for `df.write`."""
        from pyspark_odradek.sink_options import parse_sink_options
        from pyspark_odradek.writer import OdradekBatchWriter

        if overwrite:
            raise ValueError(
                "Save mode Overwrite is not allowed for Kafka. Allowed save modes are append and"
                " errorifexists: a log is only ever appended to"
            )
        return OdradekBatchWriter(parse_sink_options(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer for `df.writeStream`. `overwrite` (output mode complete) appends too, like Kafka's sink."""
        from pyspark_odradek.sink_options import parse_sink_options
        from pyspark_odradek.writer import OdradekStreamWriter

        return OdradekStreamWriter(parse_sink_options(self.options, schema))

    def _source_options(self, schema: StructType, *, is_streaming: bool) -> SourceOptions:
        from pyspark_odradek.source_options import check_schema, parse_source_options

        check_schema(schema)
        return parse_source_options(self.options, is_streaming=is_streaming)
