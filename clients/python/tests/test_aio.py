"""The client for asyncio, against the real server and against servers that misbehave."""

import asyncio
import os
import socket
import time
import unittest
import unittest.mock
from contextlib import asynccontextmanager

import anyio
from stub import ALLOWED, BROKEN, GONE, GONE_BACK, HELD, PATIENCE, USELESS, stub, waiting
from tidegate import (
    Closed,
    InvalidKey,
    InvalidRequest,
    ServerError,
    TimedOut,
    Unavailable,
    Unreachable,
)
from tidegate.aio import AsyncClient


async def until_waiting(count):
    async def look():
        while await asyncio.to_thread(waiting) != count:
            pass

    await asyncio.wait_for(look(), PATIENCE)


async def until(so):
    async def look():
        while not so():
            await asyncio.sleep(0)

    await asyncio.wait_for(look(), PATIENCE)


class Asking(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = AsyncClient(timeout=PATIENCE)
        self.addAsyncCleanup(self.client.aclose)

    async def test_a_key_is_allowed_until_its_limit_is_reached(self):
        for remaining in (2, 1, 0):
            result = await self.client.check("login async")
            self.assertEqual((result.allowed, result.limits[0].remaining), (True, remaining))
        result = await self.client.check("login async-other", "login async")
        self.assertEqual((result.allowed, result.refused_by), (False, "logins"))
        self.assertTrue(0 < int(result.headers["Retry-After"]) <= 1200)
        self.assertTrue((await self.client.check("login async-other", cost=3, peek=True)).allowed)

    async def test_odd_and_wrong_keys(self):
        key = 'login async \0\n"\U0001f980'
        self.assertEqual((await self.client.check(key)).limits[0].key, key)
        self.assertEqual((await self.client.check("unknown")).limits, ())
        with self.assertRaises(InvalidKey):
            await self.client.check("x" * 1025)
        with self.assertRaises(InvalidRequest):
            await self.client.check("jobs async-wrong")

    async def test_a_wait_that_is_cancelled_leaves_the_line(self):
        await self.client.check("login async-left", cost=3)
        task = asyncio.create_task(self.client.wait("login async-left", max_wait=3000))
        await until_waiting(1)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        await until_waiting(0)
        late = await self.client.wait("login async-left", max_wait=0.05)
        self.assertEqual((late.allowed, late.refused_by), (False, "logins"))

    async def test_a_wait_ends_when_the_client_is_closed(self):
        await self.client.wait("login async-closed", max_wait=0, cost=3)
        task = asyncio.create_task(self.client.wait("login async-closed", max_wait=3000))
        await until_waiting(1)
        await self.client.aclose()
        with self.assertRaises(Closed):
            await task
        await until_waiting(0)
        for ask in (
            lambda: self.client.check("login async-closed"),
            lambda: self.client.wait("login async-closed", max_wait=1),
            lambda: self.client.hold("jobs async-closed", hold_for=1).__aenter__(),
            lambda: self.client.release("0"),
        ):
            with self.assertRaisesRegex(Closed, "the client is closed"):
                await ask()

    async def test_a_use_is_released_after_an_exception(self):
        with self.assertRaises(ZeroDivisionError):
            async with self.client.hold("jobs async", hold_for=3600) as use:
                self.assertTrue(use.allowed)
                async with self.client.hold("jobs async", hold_for=3600) as other:
                    self.assertFalse(other.allowed)
                raise ZeroDivisionError
        async with self.client.hold("jobs async", hold_for=3600, max_wait=PATIENCE) as use:
            self.assertTrue(use.allowed)
            self.assertTrue(await use.release())
            self.assertFalse(await use.release())
            self.assertFalse(await self.client.release(use.result.use))

    async def test_a_use_is_released_after_a_scope_is_cancelled(self):
        with anyio.CancelScope() as scope:
            async with self.client.hold("jobs async-scope", hold_for=3600) as use:
                self.assertTrue(use.allowed)
                scope.cancel()
        again = self.client.hold("jobs async-scope", hold_for=3600, max_wait=PATIENCE)
        async with again as use:
            self.assertTrue(use.allowed)

    async def test_an_odd_id_is_no_use(self):
        self.assertFalse(await self.client.release("a b/\n?é"))

    async def test_what_the_server_decides_without_its_store_is_degraded(self):
        async with AsyncClient(os.environ["TIDEGATE_DEGRADED"], timeout=PATIENCE) as client:
            result = await client.check("login async-degraded")
            self.assertEqual((result.allowed, result.degraded, result.error), (True, True, None))


class Failing(unittest.IsolatedAsyncioTestCase):
    async def decides(self, url, error, **options):
        for on_error, allowed in (("allow", True), ("deny", False)):
            async with AsyncClient(url, on_error=on_error, **options) as client:
                for result in (await client.check("x"), await client.wait("x", max_wait=0)):
                    self.assertEqual((result.allowed, result.degraded), (allowed, True))
                    self.assertIsInstance(result.error, error)
                async with client.hold("x", hold_for=1) as use:
                    self.assertEqual(use.allowed, allowed)
                with self.assertRaises(error):
                    await client.release("0")

    async def test_no_server(self):
        await self.decides(GONE, Unreachable, timeout=PATIENCE)

    async def test_a_server_that_never_answers(self):
        with stub(None) as url:
            await self.decides(url, TimedOut)

    async def test_answers_that_decide_nothing(self):
        for useless in USELESS:
            with self.subTest(answer=useless[:80]), stub(useless) as url:
                await self.decides(url, ServerError, timeout=PATIENCE)
        for broken in BROKEN:
            with self.subTest(answer=broken), stub(broken) as url:
                await self.decides(url, Unavailable, timeout=PATIENCE)

    async def test_a_request_is_sent_once_on_a_new_connection(self):
        asked = []
        with stub(b"", asked=asked) as url:
            async with AsyncClient(url, timeout=PATIENCE) as client:
                self.assertIsInstance((await client.check("x")).error, Unreachable)
                self.assertEqual(len(asked), 1)

    async def test_a_release_is_tried_twice(self):
        asked = []
        with stub(b"", GONE_BACK, asked=asked) as url:
            async with AsyncClient(url, timeout=PATIENCE) as client:
                self.assertTrue(await client.release("0"))
        self.assertEqual(len(asked), 2)

    async def test_a_use_whose_release_failed_can_be_released_again(self):
        asked = []
        with stub(HELD, b"", b"", GONE_BACK, asked=asked) as url:
            async with AsyncClient(url, timeout=PATIENCE) as client:
                async with client.hold("x", hold_for=1) as use:
                    with self.assertRaises(Unreachable):
                        await use.release()
                    self.assertTrue(await use.release())
                    self.assertFalse(await use.release())
        self.assertEqual(len(asked), 4)

    async def test_a_block_whose_client_is_closed_ends(self):
        async with self.client_of_stub(HELD) as client:
            async with client.hold("x", hold_for=1) as use:
                self.assertEqual(use.result.use, "7")
                await client.aclose()

    async def test_a_wait_whose_client_is_closed_while_it_connects_asks_nothing(self):
        asked = []
        async with self.client_of_stub(None, asked=asked) as client:
            connect = anyio.connect_tcp

            async def close_and_connect(*args, **options):
                await client.aclose()
                return await connect(*args, **options)

            with unittest.mock.patch.object(anyio, "connect_tcp", close_and_connect):
                with self.assertRaises(Closed):
                    await client.wait("x", max_wait=3000)
        self.assertEqual(asked, [])

    @asynccontextmanager
    async def client_of_stub(self, *answers, **options):
        with stub(*answers, **options) as url:
            async with AsyncClient(url, timeout=PATIENCE) as client:
                yield client

    async def answered_late(self, ask):
        """Asks, and blocks the loop while the answer comes."""
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            async with AsyncClient(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
                task = asyncio.create_task(ask(client))
                connection, _ = await loop.sock_accept(listener)
                with connection:
                    request = b""
                    while b"}" not in request:
                        request += await loop.sock_recv(connection, 65536)
                    connection.sendall(ALLOWED)
                    late = time.monotonic() + 3 * client._settings.timeout
                    while time.monotonic() < late:
                        pass
                    return await task

    async def test_an_answer_that_the_loop_had_no_time_to_read_is_read(self):
        checked = await self.answered_late(lambda client: client.check("x"))
        self.assertIsNone(checked.error)
        waited = await self.answered_late(lambda client: client.wait("x", max_wait=0.05))
        self.assertIsNone(waited.error)

    async def test_the_time_of_an_answer_ends_in_a_loop_that_is_never_free(self):
        async def work():
            while True:
                await asyncio.sleep(0)

        working = asyncio.create_task(work())
        with stub(None) as url:
            async with AsyncClient(url) as client:
                self.assertIsInstance((await client.check("x")).error, TimedOut)
        working.cancel()

    async def test_a_wait_has_the_time_of_an_answer_to_find_a_place(self):
        asked = []
        with stub(None, asked=asked) as url:
            async with AsyncClient(url, max_waiting=1) as client:
                first = asyncio.create_task(client.wait("x", max_wait=3000))
                await until(lambda: asked)
                late = await client.wait("x", max_wait=3000)
                self.assertIsInstance(late.error, TimedOut)
                first.cancel()

    async def test_a_check_that_begins_while_the_client_is_closed_has_no_answer(self):
        client = AsyncClient(timeout=PATIENCE)
        pool = client._pool

        async def pool_and_close(number):
            made = await pool(number)
            await client.aclose()
            return made

        with unittest.mock.patch.object(client, "_pool", pool_and_close):
            with self.assertRaises(Closed):
                await client.check("x")
            with self.assertRaises(Closed):
                await client.release("0")

    async def test_a_release_waits_for_no_place(self):
        asked = []
        with stub(None, GONE_BACK, asked=asked) as url:
            async with AsyncClient(url, timeout=PATIENCE, max_connections=1) as client:
                task = asyncio.create_task(client.check("x"))
                await until(lambda: asked)
                self.assertTrue(await client.release("0"))
                task.cancel()

    async def test_no_proxy_of_the_environment_is_asked(self):
        with stub(ALLOWED) as url, unittest.mock.patch.dict(os.environ, HTTP_PROXY=GONE):
            async with AsyncClient(url, timeout=PATIENCE) as client:
                self.assertIsNone((await client.check("x")).error)

    async def test_connections_are_few_and_made_again(self):
        with stub(ALLOWED) as url:
            async with AsyncClient(url, timeout=PATIENCE, max_connections=2) as client:
                for _ in range(3):
                    results = await asyncio.gather(*(client.check("x") for _ in range(20)))
                    self.assertTrue(all(result.error is None for result in results))


class Loops(unittest.IsolatedAsyncioTestCase):
    async def test_pools_that_could_not_be_made_are_made_the_next_time(self):
        client = AsyncClient(timeout=PATIENCE)
        with unittest.mock.patch.object(client, "_made", side_effect=MemoryError):
            with self.assertRaises(MemoryError):
                await client.check("login half")
        self.assertIsNone((await client.check("login half")).error)
        await client.aclose()


class SeveralLoops(unittest.TestCase):
    def test_a_client_serves_one_loop_after_another(self):
        client = AsyncClient(timeout=PATIENCE)
        for remaining in (2, 1):
            result = asyncio.run(client.check("login loops"))
            self.assertEqual(result.limits[0].remaining, remaining)


if __name__ == "__main__":
    unittest.main()
