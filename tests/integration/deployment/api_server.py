"""The part of the Kubernetes API server that the certificate job uses: secrets, over TLS, with a
bearer token.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from odradek.cli.certificate_authority import CertificateAuthority

TOKEN = "of the simulated service account"


class ApiServer:
    """A server on a free port of `host`. `secrets` has the decoded content of the stored secrets, by name."""

    def __init__(self, scratch: Path, *, host: str, namespace: str) -> None:
        self.secrets: dict[str, dict[str, bytes]] = {}
        self.host = host
        self.namespace = namespace
        authority = CertificateAuthority(scratch / "api-server")
        self._ca_path = authority.create(common_name="Kubernetes CA", days=1)
        certificate, key = authority.issue("kubernetes", hosts=[host], days=1)
        self._server = ThreadingHTTPServer((host, 0), _handler(self))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def account_files(self) -> Mapping[str, bytes]:
        """Return the files that the kubelet mounts for a service account."""
        return {
            "token": TOKEN.encode(),
            "namespace": self.namespace.encode(),
            "ca.crt": self._ca_path.read_bytes(),
        }

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables by which a pod finds the API server."""
        port = self._server.server_address[1]
        return {"KUBERNETES_SERVICE_HOST": self.host, "KUBERNETES_SERVICE_PORT": str(port)}

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return the status and the document of a response."""
        root = f"/api/v1/namespaces/{self.namespace}/secrets"
        name = path.removeprefix(root).lstrip("/")
        if not path.startswith(root):
            return 404, {}
        if method == "GET":
            if name not in self.secrets:
                return 404, {}
            data = {k: base64.b64encode(v).decode() for k, v in self.secrets[name].items()}
            return 200, {"metadata": {"name": name}, "data": data}
        if method == "PUT" and name not in self.secrets:
            return 404, {}
        made = json.loads(body)
        name = made["metadata"]["name"]
        if method == "POST" and name in self.secrets:
            return 409, {}
        self.secrets[name] = {k: base64.b64decode(v) for k, v in made["data"].items()}
        return (201 if method == "POST" else 200), {}


def _handler(api: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def do_PUT(self) -> None:
            self._serve("PUT")

        def _serve(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, document = 403, dict[str, Any]()
            if self.headers.get("Authorization") == f"Bearer {TOKEN}":
                status, document = api.answer(method, self.path, body)
            sent = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    return Handler
