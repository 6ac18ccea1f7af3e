"""What is asked and answered, and what may go wrong. Knows no sockets; both clients use it."""

from __future__ import annotations

import json
import math
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Literal, Optional

OnError = Literal["allow", "deny"]

KEY_BYTES_MAX = 1024
# About 31 years.
_SECONDS_MAX = 1_000_000_000
ANSWER_BYTES_MAX = 1 << 20
# Headers of the server's answer that middleware passes on.
HANDED_ON = ("RateLimit-Policy", "RateLimit", "Retry-After")


class TidegateError(Exception):
    """Anything that this package raises."""


class InvalidKey(TidegateError, ValueError):
    """The key is longer than 1024 bytes of UTF-8, or is not Unicode. It was not sent."""


class InvalidRequest(TidegateError):
    """The server rejected the request; `reason` and `detail` say why."""

    def __init__(self, status: int, reason: str, detail: str) -> None:
        super().__init__(f"{status} {reason}: {detail}")
        self.status, self.reason, self.detail = status, reason, detail


class Closed(TidegateError):
    """The client is closed. What it was asked is not decided, whatever `on_error` says."""

    def __init__(self) -> None:
        super().__init__("the client is closed")


class Unavailable(TidegateError):
    """No usable answer: `Unreachable`, `TimedOut` or `ServerError`."""


class Unreachable(Unavailable):
    """No connection could be made, or it broke."""


class TimedOut(Unavailable):
    """The server did not answer in time."""


class ServerError(Unavailable):
    """The server answered with an error, or with something that is not a Tidegate answer."""


@dataclass(frozen=True)
class Limit:
    """One limit of one key. Times are seconds; `None` is "unknown"."""

    key: str
    rule: str
    limit: str
    amount: int
    period: Optional[float]
    remaining: Optional[int]
    rate: float
    retry_after: Optional[float]
    reset: Optional[float]
    degraded: bool


@dataclass(frozen=True)
class Result:
    """The answer to `check`, `wait` and `hold`."""

    allowed: bool
    #: Seconds until the use could be taken: 0 if at once, `None` if unknown.
    delay: Optional[float]
    #: The rule that refused.
    refused_by: Optional[str] = None
    limits: tuple[Limit, ...] = ()
    #: Whether it was decided without the counts: by the server without its store, or here.
    degraded: bool = False
    #: Why it was decided here, by `on_error`.
    error: Optional[TidegateError] = None
    #: What a held use is released by.
    use: Optional[str] = None
    #: RateLimit, RateLimit-Policy and Retry-After, as far as the server sent them.
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """Where the server is and what to do without it."""

    scheme: str
    host: str
    port: int
    prefix: str
    timeout: float
    on_error: OnError

    @classmethod
    def read(cls, server: Optional[str], timeout: Optional[float], on_error: OnError) -> Settings:
        """Fills in the environment's values and the defaults; raises `ValueError`."""
        server = server or os.environ.get("TIDEGATE_SERVER") or "http://127.0.0.1:8080"
        url = urllib.parse.urlsplit(server)
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.username:
            # It may have a password in it.
            shown = "a URL with a user" if "@" in server else repr(server)
            raise ValueError(f"server: {shown} is not a URL such as http://127.0.0.1:8080")
        if timeout is None:
            timeout = _timeout_of_environment()
        if not 0 < timeout < math.inf:
            raise ValueError("timeout: it must be above 0 seconds")
        if on_error not in ("allow", "deny"):
            raise ValueError(f"on_error: {on_error!r} is neither 'allow' nor 'deny'")
        port = url.port or (443 if url.scheme == "https" else 80)
        return cls(url.scheme, url.hostname, port, url.path.rstrip("/"), timeout, on_error)

    @property
    def release_timeout(self) -> float:
        """A use that is not given back stays taken until it lapses, so this is worth a second."""
        return max(self.timeout, 1.0)

    @property
    def base_url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"

    def without_answer(self, error: TidegateError) -> Result:
        """The result where there was no answer."""
        allowed = self.on_error == "allow"
        return Result(allowed, 0.0 if allowed else None, degraded=True, error=error)


def _timeout_of_environment() -> float:
    text = os.environ.get("TIDEGATE_TIMEOUT_MS") or "100"
    try:
        ms = float(text)
    except ValueError:
        ms = math.nan
    if not 0 < ms < math.inf:
        raise ValueError(f"TIDEGATE_TIMEOUT_MS: {text!r} is not a number above 0")
    return ms / 1000


def check_body(
    keys: Sequence[str], cost: int, peek: bool = False, hold_for: Optional[float] = None
) -> bytes:
    """The body of a check."""
    for key in keys:
        _examine(key)
    body: dict[str, object] = {"keys": list(keys), "cost": cost}
    if peek:
        body["peek"] = True
    if hold_for is not None:
        body["hold_ms"] = _ms(hold_for, "hold_for")
    return encoded(body)


def wait_body(key: str, cost: int, max_wait: float, hold_for: Optional[float] = None) -> bytes:
    """The body of a wait."""
    _examine(key)
    body: dict[str, object] = {"key": key, "cost": cost, "max_wait_ms": _ms(max_wait, "max_wait")}
    if hold_for is not None:
        body["hold_ms"] = _ms(hold_for, "hold_for")
    return encoded(body)


def sizes(max_connections: int, max_waiting: int) -> tuple[int, int]:
    """How many requests may be in progress, and how many may wait; raises `ValueError`.

    With none every request would be decided by `on_error`.
    """
    for name, size in (("max_connections", max_connections), ("max_waiting", max_waiting)):
        if size < 1:
            raise ValueError(f"{name}: {size} is less than 1")
    return max_connections, max_waiting


def use_path(use: str) -> str:
    """The path of a held use, whatever text its id is."""
    return "/v1/uses/" + urllib.parse.quote(use, safe="")


def _examine(key: str) -> None:
    if not isinstance(key, str):
        raise InvalidKey(f"a key is a str, not {type(key).__name__}")
    try:
        length = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidKey("the key is not Unicode: it has half a surrogate pair") from None
    if length > KEY_BYTES_MAX:
        raise InvalidKey(f"the key has {length} bytes; at most {KEY_BYTES_MAX} are allowed")


def _ms(seconds: float, name: str) -> int:
    if not isinstance(seconds, (int, float)) or not 0 <= seconds <= _SECONDS_MAX:
        raise ValueError(f"{name}: a number of seconds up to {_SECONDS_MAX}, not {seconds!r}")
    return math.ceil(seconds * 1000)


def encoded(body: Mapping[str, object]) -> bytes:
    """JSON, as UTF-8."""
    return json.dumps(body, ensure_ascii=False).encode()


def read_answer(status: int, headers: dict[str, str], body: bytes) -> Result:
    """The result that an answer tells; raises `InvalidRequest` and `ServerError`."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        told = {}
    if status in (200, 429) and isinstance(told.get("allowed"), bool):
        try:
            return _result(told, headers)
        except (KeyError, TypeError, AttributeError, OverflowError):
            raise ServerError("the answer lacks a required field") from None
    reason = told.get("reason")
    if not isinstance(reason, str) or told.get("status") != status:
        # A balancer answers like this while the server is replaced, which is no mistake of the
        # caller's.
        raise ServerError(f"{status} is not an answer of Tidegate: check the URL and any proxy")
    if status == 404 and reason == "path":
        # The server's other listeners, such as [admin], have not the paths of this one.
        raise ServerError("404 path: check the URL: is this the [http] door?")
    if 400 <= status < 500 and status not in (408, 429):
        raise InvalidRequest(status, reason, str(told.get("detail", "")))
    raise ServerError(f"the server answered {status} {reason}")


def _result(told: dict[str, Any], headers: dict[str, str]) -> Result:
    limits = tuple(
        Limit(
            key=limit["key"],
            rule=limit["rule"],
            limit=limit["limit"],
            amount=limit["amount"],
            period=_seconds(limit["period_ms"]),
            remaining=limit["remaining"],
            rate=limit["rate"],
            retry_after=_seconds(limit["retry_after_ms"]),
            reset=_seconds(limit["reset_ms"]),
            degraded=limit.get("degraded", False),
        )
        for limit in told["limits"]
    )
    use = told.get("use")
    if not isinstance(use, (str, type(None))):
        raise TypeError("use")
    return Result(
        allowed=told["allowed"],
        delay=_seconds(told["delay_ms"]),
        refused_by=told["refused_by"],
        limits=limits,
        degraded=told.get("degraded", False),
        use=use,
        headers=headers,
    )


def _seconds(ms: Optional[int]) -> Optional[float]:
    return None if ms is None else ms / 1000


def handed_on(get: Callable[[str], Optional[str]]) -> dict[str, str]:
    """The headers that middleware passes on, as far as they are plain text."""
    found = ((name, get(name) or "") for name in HANDED_ON)
    return {name: value for name, value in found if value and _is_plain(value)}


def _is_plain(value: str) -> bool:
    return value.isascii() and value.isprintable()
