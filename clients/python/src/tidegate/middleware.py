"""What both middlewares answer in place of the application, and what they log. No framework."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Callable, Optional, Union

from .answers import Result, encoded

Keys = Union[str, Sequence[str], None]

_log = logging.getLogger("tidegate")

# Seconds without a failure after which answers are back.
_BACK_AFTER = 10.0


@dataclass(frozen=True)
class Refusal:
    """What middleware answers in place of the application."""

    status: int
    headers: dict[str, str]
    body: bytes


def listed(keys: Keys) -> Sequence[str]:
    """The keys of a request. Without any it has no limit."""
    return [keys] if isinstance(keys, str) else keys or ()


def refusal(result: Result) -> Optional[Refusal]:
    """429 for a result that refuses, 503 for a failure under `on_error = "deny"`."""
    if result.allowed:
        return None
    if result.error:
        return unchecked()
    detail = "the limit of this resource is reached"
    more = {"refused_by": result.refused_by}
    return _problem(429, "Too Many Requests", "over_limit", detail, dict(result.headers), more)


def unchecked() -> Refusal:
    """For a request that cannot be checked: a failure under "deny", or a closed client."""
    detail = "the limits of this resource cannot be checked"
    return _problem(503, "Service Unavailable", "unavailable", detail, {"Retry-After": "1"})


def bad_key() -> Refusal:
    """For a request whose key cannot be sent. Let through, it would have no limit at all."""
    detail = "the key of this request is too long or is not valid text"
    return _problem(400, "Bad Request", "key", detail, {})


def _problem(
    status: int,
    title: str,
    reason: str,
    detail: str,
    headers: dict[str, str],
    more: Optional[Mapping[str, object]] = None,
) -> Refusal:
    told = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    headers["Content-Type"] = "application/problem+json"
    return Refusal(status, headers, encoded({**told, "reason": reason, **(more or {})}))


class Watch:
    """Logs when answers begin to fail, and when none has failed for ten seconds.

    So answers that fail now and then, among others that come, do not fill the log.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed_at: Optional[float] = None

    def note(self, result: Result) -> None:
        error = result.error
        if error is None and self._failed_at is None:
            return
        # Threads share this without a lock, which a fork could leave locked.
        now = self._clock()
        if error is not None:
            before, self._failed_at = self._failed_at, now
            if before is None:
                done = "allowed" if result.allowed else "refused"
                _log.warning("requests are %s without Tidegate: %s", done, error)
        elif self._failed_at is not None and now - self._failed_at >= _BACK_AFTER:
            before, self._failed_at = self._failed_at, None
            if before is not None:
                _log.warning("Tidegate answers again")
