"""Middleware for Starlette, FastAPI and whatever else is ASGI. It limits HTTP requests alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Callable, Optional

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .aio import AsyncClient
from .answers import Closed, InvalidKey, InvalidRequest
from .keys import client_address, make_key, networks, prefix
from .middleware import Keys, Refusal, Watch, bad_key, listed, refusal, unchecked


def client_key(
    name: str, trusted_proxies: Iterable[str] = (), *, ipv6_prefix: int = 128
) -> Callable[[Request], str]:
    """A key of the client's address: `<name> client=192.0.2.7`.

    It is the address that the request came from. Only if `trusted_proxies` have that address is
    X-Forwarded-For trusted. With an `ipv6_prefix` of 64 all IPv6 addresses of a network share the
    key `<name> client=2001:db8:1:2::/64`.
    """
    trusted, bits = networks(trusted_proxies), prefix(ipv6_prefix)

    def key(request: Request) -> str:
        peer = request.client.host if request.client else None
        forwarded_for = request.headers.getlist("x-forwarded-for")
        return make_key(name, client=client_address(peer, forwarded_for, trusted, bits))

    return key


class TidegateMiddleware:
    """Asks for a use of the key of each request, and answers 429 where it is refused.

    `key` makes a key of a request, or several, or none for a request without limits. A client that
    the middleware has made itself is closed when the application shuts down.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        key: Callable[[Request], Keys],
        client: Optional[AsyncClient] = None,
        cost: int = 1,
    ) -> None:
        self._app = app
        self._key = key
        self._client = client or AsyncClient()
        self._is_own = client is None
        self._cost = cost
        self._watch = Watch()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" and self._is_own:
            return await self._app(scope, receive, self._closing(send))
        keys = listed(self._key(Request(scope)) if scope["type"] == "http" else None)
        if not keys:
            return await self._app(scope, receive, send)
        try:
            result = await self._client.check(*keys, cost=self._cost)
        except InvalidKey:
            return await _respond(bad_key(), scope, receive, send)
        except Closed:
            return await _respond(unchecked(), scope, receive, send)
        except InvalidRequest as error:
            # What is wrong is how the middleware was set up: as though there were no server.
            result = self._client.without_answer(error)
        self._watch.note(result)
        refused = refusal(result)
        if refused is not None:
            return await _respond(refused, scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                # An application may leave them out.
                message.setdefault("headers", [])
                headers = MutableHeaders(scope=message)
                for name, value in result.headers.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _closing(self, send: Send) -> Send:
        async def send_and_close(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown."):
                # The application may start again, as in tests.
                client, self._client = self._client, AsyncClient()
                await client.aclose()
            await send(message)

        return send_and_close


async def _respond(refused: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    response = Response(refused.body, refused.status, refused.headers)
    await response(scope, receive, send)
