"""The client for asyncio, on httpx."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Callable, NamedTuple, Optional, TypeVar

import anyio.lowlevel
import httpcore  # noqa: F401 - httpx would load it when the first request comes.
import httpx

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

# The places of an AsyncClient's pools.
_CHECKS, _WAITS, _RELEASES = range(3)

_Trace = Callable[[str, object], Awaitable[None]]
_T = TypeVar("_T")


class _Pool(NamedTuple):
    """Connections, and the places for those that use them.

    httpx could bound its connections itself, but the time that it takes then grows with the square
    of the requests that wait for one.
    """

    client: httpx.AsyncClient
    places: Optional[asyncio.Semaphore]


_LoopAndPools = tuple[Optional[asyncio.AbstractEventLoop], list[_Pool]]


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
        self._closed = False

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
            except TidegateError:
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
        pool, within = await self._pool(_RELEASES), self._settings.release_timeout
        status, headers, body = await self._exchange(pool, "DELETE", use_path(use), b"", within)
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
        """Closes all connections. What is in progress raises `Closed`, as does each later call."""
        self._closed = True
        (_, pools), self._loop_and_pools = self._loop_and_pools, (None, [])
        for pool in pools:
            await pool.client.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def without_answer(self, error: TidegateError) -> Result:
        """What `on_error` decides."""
        return self._settings.without_answer(error)

    async def _decide(self, path: str, body: bytes, max_wait: Optional[float] = None) -> Result:
        pool = await self._pool(_CHECKS if max_wait is None else _WAITS)
        timeout = self._settings.timeout
        try:
            answer = await self._exchange(pool, "POST", path, body, timeout, max_wait or 0)
            return read_answer(*answer)
        except Unavailable as error:
            return self.without_answer(error)

    async def _exchange(
        self,
        pool: _Pool,
        method: str,
        path: str,
        body: bytes,
        timeout: float,
        max_wait: float = 0,
    ) -> tuple[int, dict[str, str], bytes]:
        left = _FreeTime(timeout)
        try:
            return await left.bound(self._send(pool, method, path, body, left, max_wait))
        except asyncio.TimeoutError as error:
            self._examine_closed()
            raise TimedOut(f"no answer in {timeout + max_wait:g} s") from error
        except httpx.HTTPError as error:
            self._examine_closed()
            raise Unreachable(str(error) or type(error).__name__) from error
        except RuntimeError:
            # httpx raises this if aclose() came between.
            self._examine_closed()
            raise

    def _examine_closed(self) -> None:
        if self._closed:
            raise Closed

    async def _send(
        self, pool: _Pool, method: str, path: str, body: bytes, left: _FreeTime, max_wait: float
    ) -> tuple[int, dict[str, str], bytes]:
        is_new, is_sent = False, False

        async def trace(event: str, _: object) -> None:
            nonlocal is_new, is_sent
            is_new = is_new or event.startswith("connection.connect_")
            if event.endswith("send_request_headers.started"):
                # aclose() finds no connection that is being made.
                self._examine_closed()
                if not is_sent:
                    is_sent = True
                    left.add(max_wait)

        if pool.places is not None:
            await pool.places.acquire()
        try:
            while True:
                try:
                    return await _attempt(pool.client, method, path, body, trace)
                except httpx.TransportError:
                    # The server may have closed the connection while it was idle: another will
                    # tell.
                    if is_new or self._closed:
                        raise
        finally:
            if pool.places is not None:
                pool.places.release()

    async def _pool(self, number: int) -> _Pool:
        self._examine_closed()
        loop = asyncio.get_running_loop()
        last, pools = self._loop_and_pools
        is_first = last is not loop
        if is_first:
            # Connections belong to a loop. Those of one that has ended are closed with it.
            places = [asyncio.Semaphore(size) for size in self._sizes]
            pools = [_Pool(self._made(), each) for each in [*places, None]]
            self._loop_and_pools = loop, pools
        pool = pools[number]
        if is_first:
            # Loads what httpx uses of anyio, not in the time of the first answer.
            await anyio.lowlevel.checkpoint()
        return pool

    def _made(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._settings.base_url,
            # The time of the whole exchange is bounded above.
            timeout=None,
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=self._sizes[0]
            ),
            # Nothing is verified where there is no TLS, and no authorities need be read for it.
            verify=self._ssl if self._ssl is not None else False,
            # No proxy of the environment stands before a limiter.
            trust_env=False,
        )


class _FreeTime:
    """How much time is left in which the event loop is free to read an answer.

    What the loop computes itself does not count. Otherwise hundreds of checks at once would time
    out by the work for the others, while the answers are already there. The time ends in ten steps,
    each begun after the one before, so that a loop that something else has blocked still reads what
    has come. Each step counts for a tenth at least, so that it ends in a loop that is never free.
    """

    def __init__(self, seconds: float) -> None:
        self._left = self._end = seconds

    def add(self, seconds: float) -> None:
        """More time. It comes first, and the steps at the end."""
        self._left += seconds

    async def bound(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Does the work, or raises `asyncio.TimeoutError` if it takes longer."""
        task = asyncio.ensure_future(work)
        try:
            while self._left > 0:
                step = max(self._left - self._end, self._end / 10)
                began, worked = time.monotonic(), time.thread_time()
                await asyncio.wait([task], timeout=step)
                if task.done():
                    return await task
                free = time.monotonic() - began - (time.thread_time() - worked)
                self._left -= min(step, max(free, step / 10))
            raise asyncio.TimeoutError
        finally:
            if not task.done():
                task.cancel()
                # It closes its connection.
                await asyncio.gather(task, return_exceptions=True)


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

    def __repr__(self) -> str:
        return f"AsyncUse(allowed={self.allowed}, id={self._id!r})"

    async def release(self) -> bool:
        """Gives the use back now; `False` if there is none. If it raises, it can be repeated."""
        if self._id is None:
            return False
        is_released = await self._client.release(self._id)
        self._id = None
        return is_released
