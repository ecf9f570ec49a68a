"""The administration part of the SDK: `Admin`, its arguments and results, and their conversion to protobuf messages."""
