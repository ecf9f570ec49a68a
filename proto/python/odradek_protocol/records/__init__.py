"""Record batch v2: header, reader, builder, control records, compression, checksums."""
