"""The client for asyncio, on httpx."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Callable, Optional

import anyio.lowlevel
import httpcore  # noqa: F401 - httpx would load it when the first request comes.
import httpx

from .answers import (
    ANSWER_BYTES_MAX,
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

# The places of an AsyncClient's pools.
_CHECKS, _WAITS, _RELEASES = range(3)

_LoopAndPools = tuple[Optional[asyncio.AbstractEventLoop], list[httpx.AsyncClient]]
_Trace = Callable[[str, object], Awaitable[None]]


class AsyncClient:
    """As `tidegate.Client`, for asyncio. A task that is cancelled closes its connection.

    A client serves one event loop at a time: make one for each loop that runs beside others.
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
        if self._settings.scheme == "https" and ssl_context is None:
            ssl_context = ssl.create_default_context()
        self._ssl = ssl_context
        self._sizes = sizes(max_connections, max_waiting)
        # The loop that asks, and its pools: for checks, waits and releases, which do not take
        # places from one another.
        self._loop_and_pools: _LoopAndPools = (None, [])

    async def check(self, *keys: str, cost: int = 1, peek: bool = False) -> Result:
        """Takes a use of one key, or of several: all or nothing. `peek` only looks."""
        return await self._decide("/v1/check", check_body(keys, cost, peek))

    async def wait(self, key: str, *, max_wait: float, cost: int = 1) -> Result:
        """Waits for at most `max_wait` seconds until a use is allowed, and takes it."""
        return await self._decide("/v1/wait", wait_body(key, cost, max_wait), max_wait)

    @asynccontextmanager
    async def hold(
        self, *keys: str, hold_for: float, max_wait: Optional[float] = None, cost: int = 1
    ) -> AsyncIterator[AsyncUse]:
        """Takes a use in flight and releases it at the end of the block.

        It lapses after `hold_for` seconds. With `max_wait` it waits until the use is allowed; only
        with a single key.
        """
        if max_wait is None:
            result = await self._decide("/v1/check", check_body(keys, cost, hold_for=hold_for))
        else:
            if len(keys) != 1:
                raise ValueError("only a single key can wait")
            body = wait_body(keys[0], cost, max_wait, hold_for)
            result = await self._decide("/v1/wait", body, max_wait)
        use = AsyncUse(self, result)
        try:
            yield use
        finally:
            try:
                # Also where whoever cancels the block cancels each wait in it, as anyio does.
                await asyncio.shield(use.release())
            except (Unavailable, InvalidRequest):
                pass  # It lapses by itself.

    async def release(self, use: str) -> bool:
        """Gives a held use back: `False` if it had ended or lapsed. Raises `Unavailable`.

        It waits for no place, has a second at least, and is tried twice.
        """
        try:
            return await self._release(use)
        except Unavailable:
            return await self._release(use)

    async def _release(self, use: str) -> bool:
        client, within = await self._pool(_RELEASES), self._settings.release_timeout
        status, headers, body = await self._exchange(client, "DELETE", use_path(use), b"", within)
        if status == 204:
            return True
        try:
            read_answer(status, headers, body)
        except InvalidRequest as error:
            if error.reason == "unknown_use":
                return False
            raise
        raise ServerError("the server sent an unexpected answer")

    async def aclose(self) -> None:
        """Closes all connections."""
        (_, pools), self._loop_and_pools = self._loop_and_pools, (None, [])
        for client in pools:
            await client.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def without_answer(self, error: TidegateError) -> Result:
        """What `on_error` decides."""
        return self._settings.without_answer(error)

    async def _decide(self, path: str, body: bytes, max_wait: Optional[float] = None) -> Result:
        client = await self._pool(_CHECKS if max_wait is None else _WAITS)
        within = self._settings.timeout + (max_wait or 0)
        try:
            return read_answer(*await self._exchange(client, "POST", path, body, within))
        except Unavailable as error:
            return self.without_answer(error)

    async def _exchange(
        self, client: httpx.AsyncClient, method: str, path: str, body: bytes, within: float
    ) -> tuple[int, dict[str, str], bytes]:
        try:
            return await asyncio.wait_for(self._send(client, method, path, body), within)
        except (asyncio.TimeoutError, httpx.TimeoutException) as error:
            raise TimedOut(f"no answer in {within:g} s") from error
        except httpx.HTTPError as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        except RuntimeError as error:
            # httpx raises this if aclose() came between.
            if not client.is_closed:
                raise
            raise Unreachable("the client is closed") from error

    async def _send(
        self, client: httpx.AsyncClient, method: str, path: str, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        is_new = False

        async def trace(event: str, _: object) -> None:
            nonlocal is_new
            is_new = is_new or event.startswith("connection.connect_")

        while True:
            try:
                return await _attempt(client, method, path, body, trace)
            except httpx.TimeoutException:
                raise
            except httpx.TransportError:
                # The server may have closed the connection while it was idle: another will tell.
                if is_new or client.is_closed:
                    raise

    async def _pool(self, number: int) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        last, pools = self._loop_and_pools
        is_first = last is not loop
        if is_first:
            # Connections belong to a loop. Those of one that has ended are closed with it.
            within = self._settings.timeout
            pools = [self._made(size, within) for size in self._sizes]
            pools.append(self._made(None, self._settings.release_timeout))
            self._loop_and_pools = loop, pools
        client = pools[number]
        if is_first:
            # Loads what httpx uses of anyio, not in the time of the first answer.
            await anyio.lowlevel.checkpoint()
        return client

    def _made(self, max_connections: Optional[int], within: float) -> httpx.AsyncClient:
        most_kept = self._sizes[0]
        limits = httpx.Limits(
            max_connections=max_connections,
            max_keepalive_connections=min(max_connections or most_kept, most_kept),
        )
        return httpx.AsyncClient(
            base_url=self._settings.base_url,
            # The time of the whole exchange is bounded above; of a connection, here.
            timeout=httpx.Timeout(None, connect=within, pool=within),
            limits=limits,
            # Nothing is verified where there is no TLS, and no authorities need be read for it.
            verify=self._ssl if self._ssl is not None else False,
            # No proxy of the environment stands before a limiter.
            trust_env=False,
        )


async def _attempt(
    client: httpx.AsyncClient, method: str, path: str, body: bytes, trace: _Trace
) -> tuple[int, dict[str, str], bytes]:
    headers = {"Accept-Encoding": "identity"}
    if body:
        headers["Content-Type"] = "application/json"
    asked = client.stream(
        method, path, content=body, headers=headers, extensions={"trace": trace}
    )
    async with asked as response:
        answer = bytearray()
        async for chunk in response.aiter_raw():
            answer += chunk
            if len(answer) > ANSWER_BYTES_MAX:
                raise ServerError("the answer is too long")
        return response.status_code, handed_on(response.headers.get), bytes(answer)


class AsyncUse:
    """A use in flight, if `allowed`."""

    def __init__(self, client: AsyncClient, result: Result) -> None:
        self._client = client
        self._id = result.use
        self.result = result
        self.allowed = result.allowed

    async def release(self) -> bool:
        """Gives the use back now; `False` if there is none. If it raises, it can be repeated."""
        if self._id is None:
            return False
        is_released = await self._client.release(self._id)
        self._id = None
        return is_released
