"""Stands in for the gateway: says on its inherited socket that it is ready, once it may."""

import os
import signal
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

flags = dict(text[2:].split("=", 1) for text in sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if flags.get("served-model-name") == "bad":
    sys.stderr.write("gateway: --served-model-name: 'bad' is bad\n")
    sys.exit(2)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert os.environ["CHAIRLIFT_REDIS_URL"].startswith("unix://")
        self.send_response(200 if time.monotonic() > started + 0.3 else 503)
        self.end_headers()


started = time.monotonic()
server = HTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
server.socket.close()
server.socket = socket.socket(fileno=int(flags["listen-fd"]))
server.serve_forever()
