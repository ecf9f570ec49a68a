"""Messages between voters: typed frames over mutual TLS, sent once the disk holds what they say."""
