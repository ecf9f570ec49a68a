"""Runs an FTP server on loopback for the tests."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serve_ftp(directory: Path) -> Iterator[str]:
    """Serve an existing directory; yield the URL with user and password."""
    with warnings.catch_warnings():
        # The package pyftpdlib uses the deprecated asyncore.
        warnings.simplefilter("ignore", DeprecationWarning)
        from pyftpdlib.authorizers import DummyAuthorizer
        from pyftpdlib.handlers import FTPHandler
        from pyftpdlib.servers import ThreadedFTPServer

    authorizer = DummyAuthorizer()
    authorizer.add_user("user", "pass", str(directory), perm="elradfmwMT")
    handler = type("Handler", (FTPHandler,), {"authorizer": authorizer})
    server = ThreadedFTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"handle_exit": False})
    thread.start()
    try:
        yield f"ftp://user:pass@127.0.0.1:{server.address[1]}/"
    finally:
        server.close_all()
        thread.join(10)
