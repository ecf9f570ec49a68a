import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.WritableByteChannel;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;

/**
 * Apache Kafka's own codec. "read": batches on standard input, one line for each batch and record on
 * standard output. "write": batches on standard output, one for each compression, then two markers.
 */
public class BatchOracle {
  private static final int RECORDS = 5_000;

  public static void main(String[] args) throws Exception {
    if (args[0].equals("read")) {
      read(ByteBuffer.wrap(System.in.readAllBytes()));
    } else {
      write();
    }
  }

  private static void read(ByteBuffer input) {
    StringBuilder out = new StringBuilder();
    for (MutableRecordBatch batch : MemoryRecords.readableRecords(input).batches()) {
      batch.ensureValid();
      out.append(
          String.format(
              "batch %d %d %d %s %d %d %d %d %b %b %s %d%n",
              batch.baseOffset(), batch.lastOffset(), batch.partitionLeaderEpoch(), batch.compressionType().name,
              batch.producerId(), batch.producerEpoch(), batch.baseSequence(), batch.lastSequence(),
              batch.isTransactional(), batch.isControlBatch(), batch.timestampType().name, batch.maxTimestamp()));
      for (Record record : batch) {
        record.ensureValid();
        out.append(String.format("record %d %d %s %s", record.offset(), record.timestamp(), hex(record.key()),
            hex(record.value())));
        for (Header header : record.headers()) {
          byte[] key = header.key().getBytes(StandardCharsets.UTF_8);
          byte[] value = header.value();
          out.append(" " + hex(ByteBuffer.wrap(key)) + "=" + hex(value == null ? null : ByteBuffer.wrap(value)));
        }
        out.append("\n");
        if (batch.isControlBatch()) {
          EndTransactionMarker marker = EndTransactionMarker.deserialize(record);
          out.append("marker " + marker.controlType() + " " + marker.coordinatorEpoch() + "\n");
        }
      }
    }
    System.out.print(out);
  }

  private static String hex(ByteBuffer data) {
    if (data == null) {
      return "null";
    }
    byte[] bytes = new byte[data.remaining()];
    data.duplicate().get(bytes);
    return "x" + HexFormat.of().formatHex(bytes);
  }

  private static void write() throws Exception {
    WritableByteChannel out = Channels.newChannel(System.out);
    for (String name : new String[] {"none", "gzip", "snappy", "lz4", "zstd"}) {
      MemoryRecordsBuilder builder =
          MemoryRecords.builder(ByteBuffer.allocate(1 << 20), (byte) 2, Compression.of(name).build(),
              TimestampType.CREATE_TIME, 100, -1, 77, (short) 3, 5, true, 9);
      for (int i = 0; i < RECORDS; i++) {
        byte[] key = i % 5 == 0 ? null : ("key-" + i).getBytes(StandardCharsets.UTF_8);
        byte[] value = i % 7 == 0 ? null : ("value ".repeat(i % 40)).getBytes(StandardCharsets.UTF_8);
        Header[] headers = new Header[i % 3];
        for (int h = 0; h < headers.length; h++) {
          headers[h] = new RecordHeader("h" + h, h == 0 ? null : new byte[] {(byte) i});
        }
        builder.append(1_000 + i, key, value, headers);
      }
      out.write(builder.build().buffer());
    }
    for (ControlRecordType type : new ControlRecordType[] {ControlRecordType.COMMIT, ControlRecordType.ABORT}) {
      EndTransactionMarker marker = new EndTransactionMarker(type, 21);
      out.write(MemoryRecords.withEndTransactionMarker(50, 60_000, 4, 77, (short) 3, marker).buffer());
    }
    System.out.flush();
  }
}
