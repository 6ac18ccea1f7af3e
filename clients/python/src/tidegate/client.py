"""The client for threads: standard library alone, with a pool of connections that stay open."""

from __future__ import annotations

import functools
import http.client
import io
import os
import socket
import ssl
import threading
import time
import weakref
from typing import Any, Optional

from .answers import (
    ANSWER_BYTES_MAX,
    Closed,
    InvalidRequest,
    OnError,
    Result,
    ServerError,
    Settings,
    TidegateError,
    TimedOut,
    Unavailable,
    Unreachable,
    check_body,
    handed_on,
    read_answer,
    sizes,
    use_path,
    wait_body,
)

# How long a connection may be idle and be used again. The server closes it after 75 s.
_IDLE_SECONDS_MAX = 60.0
# The longest timeout that a socket takes is about 24 days.
_SOCKET_SECONDS_MAX = 2_000_000.0
# How long the first read may take at least: what has come is read.
_POLL_SECONDS = 0.001
# How a connection fails that the server has closed while it was idle, without and with TLS.
_CLOSED = (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError)

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Client:
    """Asks a Tidegate server; threads may share one.

    `server` is the URL of its HTTP door, else `TIDEGATE_SERVER`, else http://127.0.0.1:8080.
    `timeout` is how many seconds an answer may take, else `TIDEGATE_TIMEOUT_MS`, else 0.1 s; a
    request that waits has its `max_wait` besides. Without an answer `on_error` decides.
    """

    def __init__(
        self,
        server: Optional[str] = None,
        *,
        timeout: Optional[float] = None,
        on_error: OnError = "allow",
        max_connections: int = 64,
        max_waiting: int = 1024,
        ssl_context: Optional[ssl.SSLContext] = None,
    ) -> None:
        self._settings = Settings.read(server, timeout, on_error)
        self._ssl = ssl_context
        if self._settings.scheme == "https" and ssl_context is None:
            self._ssl = ssl.create_default_context()
        self._sizes = sizes(max_connections, max_waiting)
        # Each with the time since when it is idle: the newest are last.
        self._idle: list[tuple[http.client.HTTPConnection, float]] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._closed = False
        self._make_locks()
        _clients.add(self)

    def _make_locks(self) -> None:
        # Requests that wait have places of their own, so that they leave some for the others.
        self._places, self._waiting_places = map(threading.BoundedSemaphore, self._sizes)
        self._lock = threading.Lock()

    def _after_fork(self) -> None:
        """Lets go of what belongs to the threads of the parent, which the child does not have."""
        for connection in [*self._kept(), *self._busy]:
            if connection.sock is not None:
                # Closes it here alone, and asks no lock that a reader may hold.
                os.close(connection.sock.detach())
        self._idle, self._busy = [], set()
        self._make_locks()

    def check(self, *keys: str, cost: int = 1, peek: bool = False) -> Result:
        """Takes a use of one key, or of several: all or nothing. `peek` only looks."""
        return self._decide("/v1/check", check_body(keys, cost, peek))

    def wait(self, key: str, *, max_wait: float, cost: int = 1) -> Result:
        """Waits for at most `max_wait` seconds until a use is allowed, and takes it."""
        return self._decide("/v1/wait", wait_body(key, cost, max_wait), max_wait)

    def hold(
        self, *keys: str, hold_for: float, max_wait: Optional[float] = None, cost: int = 1
    ) -> Use:
        """Takes a use in flight; `with` releases it. It lapses after `hold_for` seconds.

        With `max_wait` it waits until the use is allowed; only with a single key.
        """
        if max_wait is None:
            result = self._decide("/v1/check", check_body(keys, cost, hold_for=hold_for))
        else:
            if len(keys) != 1:
                raise ValueError("only a single key can wait")
            body = wait_body(keys[0], cost, max_wait, hold_for)
            result = self._decide("/v1/wait", body, max_wait)
        return Use(self, result)

    def release(self, use: str) -> bool:
        """Gives a held use back: `False` if it had ended or lapsed. Raises `Unavailable`.

        It waits for no place, has a second at least, and is tried twice.
        """
        try:
            return self._release(use)
        except Unavailable:
            self._examine_closed()
        try:
            return self._release(use)
        except Unavailable:
            self._examine_closed()
            raise

    def _release(self, use: str) -> bool:
        began, timeout = time.monotonic(), self._settings.release_timeout
        status, headers, body = self._exchange("DELETE", use_path(use), b"", began, timeout)
        if status == 204:
            return True
        try:
            read_answer(status, headers, body)
        except InvalidRequest as error:
            if error.reason == "unknown_use":
                return False
            raise
        raise ServerError("the server sent an unexpected answer")

    def close(self) -> None:
        """Closes all connections; requests that wait leave their line.

        What is in progress raises `Closed`, as does each later call.
        """
        with self._lock:
            self._closed = True
            open_connections = [*self._kept(), *self._busy]
            self._idle = []
        for connection in open_connections:
            # A thread may be reading: this wakes it, and close() alone would not.
            try:
                if connection.sock is not None:
                    connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for connection in open_connections:
            if connection not in self._busy:
                connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def without_answer(self, error: TidegateError) -> Result:
        """What `on_error` decides."""
        return self._settings.without_answer(error)

    def _decide(self, path: str, body: bytes, max_wait: Optional[float] = None) -> Result:
        try:
            return read_answer(*self._ask(path, body, max_wait))
        except Unavailable as error:
            self._examine_closed()
            return self.without_answer(error)

    def _examine_closed(self) -> None:
        if self._closed:
            raise Closed

    def _ask(
        self, path: str, body: bytes, max_wait: Optional[float]
    ) -> tuple[int, dict[str, str], bytes]:
        places = self._places if max_wait is None else self._waiting_places
        began, timeout = time.monotonic(), self._settings.timeout
        if not places.acquire(timeout=timeout):
            raise TimedOut("all connections were in use")
        try:
            return self._exchange("POST", path, body, began, timeout, max_wait or 0)
        finally:
            places.release()

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes,
        began: float,
        timeout: float,
        max_wait: float = 0,
    ) -> tuple[int, dict[str, str], bytes]:
        deadline = began + timeout + max_wait
        try:
            connection = self._from_pool()
            if connection is not None:
                try:
                    return self._send(connection, method, path, body, deadline)
                except _CLOSED:
                    pass  # The server closed it while it was idle: a new one will tell.
            within = min(time.monotonic() + timeout, deadline)
            return self._send(self._connection(within), method, path, body, deadline)
        except (socket.timeout, TimeoutError) as error:
            raise TimedOut(f"no answer in {timeout + max_wait:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(str(error) or type(error).__name__) from error

    def _from_pool(self) -> Optional[http.client.HTTPConnection]:
        with self._lock:
            oldest = time.monotonic() - _IDLE_SECONDS_MAX
            while self._idle and self._idle[0][1] < oldest:
                self._idle.pop(0)[0].close()
            return self._idle.pop()[0] if self._idle else None

    def _kept(self) -> list[http.client.HTTPConnection]:
        return [connection for connection, _ in self._idle]

    def _connection(self, deadline: float) -> http.client.HTTPConnection:
        settings, timeout = self._settings, _left(deadline)
        if settings.scheme == "https":
            return http.client.HTTPSConnection(
                settings.host, settings.port, timeout=timeout, context=self._ssl
            )
        return http.client.HTTPConnection(settings.host, settings.port, timeout=timeout)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes,
        deadline: float,
    ) -> tuple[int, dict[str, str], bytes]:
        is_kept = False
        with self._lock:
            self._examine_closed()
            self._busy.add(connection)
        try:
            if connection.sock is None:
                connection.connect()
                # close() may have found no socket to wake this thread by.
                self._examine_closed()
            connection.sock.settimeout(_left(deadline))
            headers = {"Content-Type": "application/json"} if body else {}
            connection.request(method, self._settings.prefix + path, body or None, headers)
            _read_until(connection, deadline)
            with connection.getresponse() as response:
                # Some versions of Python allocate at once whatever may be read.
                length = ANSWER_BYTES_MAX + 1 if response.length is None else response.length
                answer = response.read(min(length, ANSWER_BYTES_MAX + 1))
                if len(answer) > ANSWER_BYTES_MAX:
                    raise ServerError("the answer is too long")
                is_kept = not response.will_close
            return response.status, handed_on(response.headers.get), answer
        finally:
            # Also on KeyboardInterrupt: the server sees the connection close, and a request
            # that waits there leaves its line.
            with self._lock:
                self._busy.discard(connection)
                is_kept = is_kept and not self._closed and len(self._idle) < self._sizes[0]
                if is_kept:
                    self._idle.append((connection, time.monotonic()))
            if not is_kept:
                connection.close()


class Use:
    """A use in flight, if `allowed`. A `with` block releases it at its end."""

    def __init__(self, client: Client, result: Result) -> None:
        self._client = client
        self._id = result.use
        self.result = result
        self.allowed = result.allowed

    def release(self) -> bool:
        """Gives the use back now; `False` if there is none. If it raises, it can be repeated."""
        if self._id is None:
            return False
        is_released = self._client.release(self._id)
        self._id = None
        return is_released

    def __repr__(self) -> str:
        return f"Use(allowed={self.allowed}, id={self._id!r})"

    def __enter__(self) -> Use:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.release()
        except TidegateError:
            pass  # It lapses by itself.


def _left(deadline: float, at_least: float = 0.0) -> float:
    left = max(deadline - time.monotonic(), at_least)
    if left <= 0:
        raise TimeoutError
    return min(left, _SOCKET_SECONDS_MAX)


def _read_until(connection: http.client.HTTPConnection, deadline: float) -> None:
    """Bounds the whole answer of this connection, where a socket bounds each read alone."""
    response_class: Any = functools.partial(_BoundedResponse, deadline=deadline)
    connection.response_class = response_class


class _BoundedResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, deadline: float, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self.fp = io.BufferedReader(_DeadlineReader(self.fp.detach(), sock, deadline))


class _DeadlineReader(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, sock: socket.socket, deadline: float) -> None:
        self._raw, self._socket, self._deadline = raw, sock, deadline
        self._is_first = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Optional[int]:
        # The answer may be there, though this thread had to wait for others and is late. Later
        # reads are bounded, or a server that drips would never end.
        soon = _POLL_SECONDS if self._is_first else 0.0
        self._is_first = False
        self._socket.settimeout(_left(self._deadline, soon))
        count: Optional[int] = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
