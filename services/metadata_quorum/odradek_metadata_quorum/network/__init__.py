"""Messages between voters: typed frames over mutual TLS. A message is sent once the state that it reports is on
disk.
"""
