"""A real web server on this machine, which can be told to misbehave."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Mirror:
    """Serves ``files`` by name; each request takes the next of ``faults``, then all goes well.

    A fault is a status to answer with (503), ``("drop", n)`` to end the connection after n bytes, ``("send", content)``
    for other content than the file's, ``("stall", n)`` to send n bytes and then nothing until ``released`` is set,
    ``("redirect", address)``, ``("raw", bytes)`` for an answer of which nothing is HTTP but what these say, ``"whole"``
    to ignore the range asked for, or ``None``.
    """

    def __init__(self, address):
        self.address = address
        self.files = {}
        self.faults = []
        self.asked = []
        """The name and the range of every request."""
        self.stalled, self.released = threading.Event(), threading.Event()


@contextmanager
def serving():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name, wanted = self.path.lstrip("/"), self.headers.get("Range")
            mirror.asked.append((name, wanted))
            fault = mirror.faults.pop(0) if mirror.faults else None
            if isinstance(fault, int) or name not in mirror.files:
                self.send_error(fault or 404)
                return
            kind, value = fault if isinstance(fault, tuple) else (fault, None)
            if kind == "raw":
                self.wfile.write(value)
                return
            if kind == "redirect":
                self.send_response(302)
                self.send_header("Location", value)
                self.end_headers()
                return
            content = value if kind == "send" else mirror.files[name]
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and kind != "whole" else 0
            body = content[start:]
            if start and not body:
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:value] if kind in ("drop", "stall") else body)
            if kind == "stall":
                mirror.stalled.set()
                mirror.released.wait()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    mirror = Mirror(f"http://127.0.0.1:{server.server_port}/")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield mirror
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
