"""The admin of the SDK: `Admin`, the values it takes and returns, and their translation to messages."""
