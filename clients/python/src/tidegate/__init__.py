"""Asks a Tidegate server whether a request is within its limits.

`Client` is for threads, `tidegate.aio.AsyncClient` for asyncio. `tidegate.asgi` and
`tidegate.django` are middleware.
"""

from .answers import (
    Closed,
    InvalidKey,
    InvalidRequest,
    Limit,
    Result,
    ServerError,
    TidegateError,
    TimedOut,
    Unavailable,
    Unreachable,
)
from .client import Client, Use
from .keys import client_address, make_key

__all__ = [
    "Client",
    "Closed",
    "InvalidKey",
    "InvalidRequest",
    "Limit",
    "Result",
    "ServerError",
    "TidegateError",
    "TimedOut",
    "Unavailable",
    "Unreachable",
    "Use",
    "client_address",
    "make_key",
]
