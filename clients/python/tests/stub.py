"""Servers that misbehave, each on a free port, and the real one's metrics."""

import os
import socket
import threading
import urllib.request
from contextlib import contextmanager

#: How long a test waits for what must happen before it gives up. Never a measure.
PATIENCE = 30.0


@contextmanager
def stub(*answers, closes=True, drips=False, asked=None):
    """Answers each request with the next of `answers`, the last one again and again.

    `None` never answers. With `closes` each connection is closed behind its answer, of which the
    client is not told. With `drips` a head without end comes behind the answer. The list `asked`
    gets every request.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    left = list(answers)
    kept = []
    pause = threading.Event()

    def serve(connection):
        buffer = b""
        while chunk := connection.recv(65536):
            buffer += chunk
            is_body_due = b"content-length" in buffer.lower() and b"}" not in buffer
            if b"\r\n\r\n" not in buffer or is_body_due:
                continue
            answer = left.pop(0) if len(left) > 1 else left[0]
            if asked is not None:
                asked.append(buffer)
            if answer is not None:
                connection.sendall(answer)
                while drips:
                    pause.wait(0.01)
                    connection.sendall(b"x")
                if closes:
                    connection.close()
                    return
            buffer = b""

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            kept.append(connection)
            threading.Thread(target=guarded, args=[connection], daemon=True).start()

    def guarded(connection):
        try:
            serve(connection)
        except OSError:
            pass

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        # A thread that accepts would keep the listener open.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in kept:
            connection.close()


def answer(body, status="200 OK", headers=""):
    """The bytes of an answer."""
    body = body.encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


ALLOWED_BODY = '{"allowed":true,"delay_ms":0,"refused_by":null,"limits":[]}'
ALLOWED = answer(ALLOWED_BODY)

#: The answer to a hold, which ends its connection.
HELD = answer(ALLOWED_BODY[:-1] + ',"use":"7"}', headers="Connection: close\r\n")

#: The answer to a release.
GONE_BACK = answer("", "204 No Content")

#: Answers that decide nothing.
USELESS = [
    answer('{"status":503,"reason":"draining"}', "503 Service Unavailable"),
    answer("", "500 Internal Server Error"),
    answer("<html>", "429 Too Many Requests"),
    answer("<html>", "403 Forbidden"),
    answer("", "404 Not Found"),
    answer('{"status":"Failure","reason":"NotFound","code":404}', "404 Not Found"),
    answer('{"status":404,"detail":"nothing here"}', "404 Not Found"),
    answer("{}"),
    answer("[]"),
    answer('{"allowed":true,"delay_ms":0,"refused_by":null,"limits":[{}]}'),
    answer('{"allowed":true,"delay_ms":0,"refused_by":null,"limits":[null]}'),
    answer('{"allowed":true,"delay_ms":1%s,"refused_by":null,"limits":[]}' % ("0" * 400)),
    answer('{"allowed":true,"delay_ms":0,"refused_by":null,"limits":[],"use":5}'),
    answer("[" * 100_000),
    answer(" " * (2 << 20)),
    answer("", "302 Found", "Location: http://127.0.0.1:1/\r\n"),
]

#: Answers that are no HTTP, or break off.
BROKEN = [b"\x00\x01\x02\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b""]


#: The URL of a server that is not there: nothing listens on this port, which is for root alone.
GONE = "http://127.0.0.1:2"


def until(so):
    """Asks again and again until it is so."""
    watchdog = threading.Timer(PATIENCE, lambda: None)
    watchdog.daemon = True
    watchdog.start()
    while not so():
        assert watchdog.is_alive(), "it never came to be"


def waiting():
    """How many requests wait at the real server's HTTP door."""
    with urllib.request.urlopen(os.environ["TIDEGATE_SERVER"] + "/metrics") as page:
        for line in page.read().decode().splitlines():
            if line.startswith('tidegate_waiting{door="http"}'):
                return int(line.split()[-1])
    return 0
