"""Lists, fetches and stores the files of a directory on an FTP server.

A file gets its final name only when it is complete, both locally and on the server.
"""

from __future__ import annotations

import ftplib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

TIMEOUT_S: Final = 30.0
_PORT: Final = 21


class FtpDirectory:
    """A directory on an FTP server: `ftp://user:password@host:port/path`, or `ftps://...` with TLS. Each call opens a
    new connection and blocks.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("ftp", "ftps") or not parts.hostname:
            # The message must not contain the user name and the password.
            address = f"{parts.scheme}://{parts.hostname or ''}"
            raise ValueError(f"{address!r} is not an ftp:// or ftps:// address")
        self._is_tls = parts.scheme == "ftps"
        self._host = parts.hostname
        self._port = parts.port or _PORT
        self._user = unquote(parts.username or "anonymous")
        self._password = unquote(parts.password or "")
        self._path = unquote(parts.path) or "/"

    def __str__(self) -> str:
        return f"{'ftps' if self._is_tls else 'ftp'}://{self._host}:{self._port}{self._path}"

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each complete file, by name. Files whose names begin with `.` or `_`, or end with
        `.part`, count as incomplete.
        """
        with self._connected() as ftp:
            names = _names(ftp)
            # After a listing the connection is in ASCII mode, in which servers refuse SIZE.
            ftp.voidcmd("TYPE I")
            return {
                name: size
                for entry in names
                if _is_whole(name := PurePosixPath(entry).name)
                and (size := _size(ftp, name)) is not None
            }

    def fetch(self, name: str, directory: Path) -> Path:
        """Copy a file into the local `directory` and return its path. The file appears there when it is complete."""
        part, target = directory / f".{name}.part", directory / name
        with self._connected() as ftp, part.open("wb") as file:
            ftp.retrbinary(f"RETR {name}", file.write)
            file.flush()
            os.fsync(file.fileno())
        part.rename(target)
        return target

    def store(self, name: str, content: Iterator[bytes]) -> None:
        """Write a file on the server. It appears under its name when it is complete, and replaces an existing file."""
        with self._connected() as ftp:
            ftp.storbinary(f"STOR {name}.part", _Chunks(content))
            if name in {PurePosixPath(entry).name for entry in _names(ftp)}:
                ftp.delete(name)
            ftp.rename(f"{name}.part", name)

    @contextmanager
    def _connected(self) -> Iterator[ftplib.FTP]:
        with (ftplib.FTP_TLS if self._is_tls else ftplib.FTP)(timeout=TIMEOUT_S) as ftp:
            ftp.connect(self._host, self._port)
            ftp.login(self._user, self._password)
            if isinstance(ftp, ftplib.FTP_TLS):
                ftp.prot_p()
            ftp.cwd(self._path)
            ftp.voidcmd("TYPE I")
            yield ftp


class _Chunks:
    """A file object that reads from an iterator of bytes, as `storbinary` needs it."""

    def __init__(self, content: Iterator[bytes]) -> None:
        self._content = content

    def read(self, _size: int = -1) -> bytes:
        return next((chunk for chunk in self._content if chunk), b"")


def _names(ftp: ftplib.FTP) -> list[str]:
    try:
        return ftp.nlst()
    except ftplib.error_perm as error:
        if str(error).startswith("550"):  # some servers respond with 550 for an empty directory
            return []
        raise


def _is_whole(name: str) -> bool:
    return not name.startswith((".", "_")) and not name.endswith(".part")


def _size(ftp: ftplib.FTP, name: str) -> int | None:
    try:
        return ftp.size(name)
    except ftplib.error_perm:  # `name` is a directory, or was deleted in the meantime
        return None
