"""Refuses what is no HTTP with the form and the headers of all other refusals."""

from __future__ import annotations

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .replies import SAFE_HEADERS, encoded, error_document


class HttpConnection(H11Protocol):
    """A connection of uvicorn's, whose answer to what is no HTTP is JSON."""

    def send_400_response(self, msg: str) -> None:
        body = encoded(error_document("bad_request", "this is not a request of HTTP/1.1", "GET /openapi.json lists all"))
        headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *SAFE_HEADERS]
        head = h11.Response(status_code=400, headers=[*headers, (b"content-length", b"%d" % len(body))], reason=b"Bad Request")
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
