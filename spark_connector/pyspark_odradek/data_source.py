"""The data source class that Spark uses. Each method imports the modules that it needs, because they are slow to load
and no Spark process needs all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark_odradek.sink_options import SinkOptions
    from pyspark_odradek.source_options import SourceOptions


class OdradekDataSource(DataSource):
    """The data source for `format("odradek")`. Its options, schema and offsets are those of Spark's Kafka source and
    sink.

    Spark pickles an instance, and makes readers and writers from it in several processes, so an instance holds only
    options.
    """

    _is_unpickled = False

    def __init__(self, options: dict[str, str]) -> None:
        from pyspark_odradek.option_names import is_source, warn_without_effect

        super().__init__(options)
        # Readers in other processes come from pickled instances, so they do not repeat the warning. For a sink, Spark
        # makes an instance in each of two processes, so `_checked` logs the warning in one of them.
        if is_source(options):
            warn_without_effect(options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._is_unpickled = True

    @classmethod
    def name(cls) -> str:
        """Return the name by which `format(...)` selects this source."""
        return "odradek"

    def schema(self) -> StructType:
        """Return all columns of the source, with headers if the option includeHeaders is true. A query may choose fewer
        columns by `.schema(...)`.

        Spark calls this in `load()`, so wrong options raise ValueError there, as with Spark's Kafka source.
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
        return OdradekBatchWriter(self._checked(parse_sink_options(self.options, schema)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer for `df.writeStream`. `overwrite` (output mode complete) is ignored: the writer appends, as
        Spark's Kafka sink does.
        """
        from pyspark_odradek.sink_options import parse_sink_options
        from pyspark_odradek.writer import OdradekStreamWriter

        return OdradekStreamWriter(self._checked(parse_sink_options(self.options, schema)))

    def _checked(self, options: SinkOptions) -> SinkOptions:
        """Return the options of a sink after a check of its cluster and topic.

        Spark first gets a writer from a new data source, and starts this writer's tasks. Later it unpickles the data
        source and gets another writer from it, which commits or aborts the batch. The options of that writer are not
        checked, because a failed check would prevent the commit.
        """
        from pyspark_odradek.delivery import check_target
        from pyspark_odradek.option_names import warn_without_effect

        if not self._is_unpickled:
            warn_without_effect(self.options)
            check_target(options)
        return options

    def _source_options(self, schema: StructType, *, is_streaming: bool) -> SourceOptions:
        from pyspark_odradek.source_options import check_schema, parse_source_options

        check_schema(schema)
        return parse_source_options(self.options, is_streaming=is_streaming)
