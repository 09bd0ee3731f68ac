"""Streams of tokens from an HTTP server: as little work as can be, since the servers' threads want the same cores.

Answers are read as bytes with the time of each read, and taken apart after the last.
"""

import dataclasses
import json
import selectors
import socket
import time


@dataclasses.dataclass
class Stream:
    start: float
    reads: list = dataclasses.field(default_factory=list)  # (seconds, bytes)

    def body(self):
        return b"".join(data for _, data in self.reads)


def request_bytes(path, body):
    data = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(data)}\r\n\r\n").encode() + data


def run(port, path, bodies, timeout=300):
    """Sends all requests at once; returns their Streams when the last has ended."""
    selector = selectors.DefaultSelector()
    streams = []
    for body in bodies:
        connection = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = Stream(time.monotonic())
        connection.sendall(request_bytes(path, body))
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ, stream)
        streams.append(stream)
    open_streams = len(streams)
    while open_streams:
        ready = selector.select(timeout)
        if not ready:
            raise TimeoutError(f"nothing came for {timeout} s")
        for key, _ in ready:
            data = key.fileobj.recv(1 << 18)
            if data:
                key.data.reads.append((time.monotonic(), data))
            else:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                open_streams -= 1
    return streams


def dechunk(body):
    """The payload of a chunked body."""
    out, at = [], 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end].split(b";")[0], 16)
        if size == 0:
            return b"".join(out)
        out.append(body[end + 2:end + 2 + size])
        at = end + 2 + size + 2


def events(stream):
    """The JSON objects of a stream of server-sent events."""
    head, _, body = stream.body().partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"the server answered {(head + b' ' + body)[:500]!r}")
    if b"transfer-encoding: chunked" in head.lower():
        body = dechunk(body)
    lines = (line[5:].strip() for line in body.split(b"\n") if line.startswith(b"data:"))
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def token_times(stream):
    """Times of the reads that brought an event, which is one token each; the first read with an event has the first."""
    return [when for when, data in stream.reads if b"data:" in data]
