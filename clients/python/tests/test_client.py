"""The client for threads, against the real server and against servers that misbehave."""

import gc
import http.client
import os
import signal
import socket
import ssl
import unittest
import unittest.mock
from concurrent.futures import ThreadPoolExecutor

from stub import (
    ALLOWED,
    BROKEN,
    GONE,
    GONE_BACK,
    HELD,
    PATIENCE,
    USELESS,
    stub,
    until,
    waiting,
)
from tidegate import (
    Client,
    Closed,
    InvalidKey,
    InvalidRequest,
    ServerError,
    TimedOut,
    Unavailable,
    Unreachable,
    client_address,
    make_key,
)
from tidegate import client as client_module
from tidegate.aio import AsyncClient
from tidegate.keys import networks


class Asking(unittest.TestCase):
    def setUp(self):
        self.client = Client(timeout=PATIENCE)
        self.addCleanup(self.client.close)

    def test_a_key_is_allowed_until_its_limit_is_reached(self):
        for remaining in (2, 1, 0):
            result = self.client.check("login check")
            self.assertTrue(result.allowed)
            self.assertEqual((result.delay, result.refused_by, result.use), (0, None, None))
            self.assertEqual((result.degraded, result.error), (False, None))
            (limit,) = result.limits
            self.assertEqual((limit.key, limit.rule), ("login check", "logins"))
            self.assertEqual(limit.limit, "3 per hour")
            self.assertEqual((limit.amount, limit.period, limit.remaining), (3, 3600, remaining))
            self.assertEqual((limit.retry_after, limit.degraded), (0, False))
        result = self.client.check("login check")
        self.assertFalse(result.allowed)
        self.assertEqual(result.refused_by, "logins")
        self.assertTrue(0 < result.delay <= 1200)
        self.assertTrue(0 < int(result.headers["Retry-After"]) <= 1200)

    def test_a_peek_takes_nothing_and_a_cost_takes_several(self):
        for _ in range(5):
            self.assertTrue(self.client.check("login peek", cost=3, peek=True).allowed)
        self.assertTrue(self.client.check("login peek", cost=3).allowed)
        self.assertFalse(self.client.check("login peek", peek=True).allowed)

    def test_several_keys_are_all_or_nothing(self):
        self.assertTrue(self.client.check("login all-a", cost=3).allowed)
        both = self.client.check("login all-b", "login all-a")
        self.assertEqual((both.allowed, len(both.limits)), (False, 2))
        self.assertEqual(self.client.check("login all-b", peek=True).limits[0].remaining, 3)

    def test_a_key_without_rule_has_no_limit(self):
        result = self.client.check("nobody knows it")
        self.assertEqual((result.allowed, result.limits), (True, ()))

    def test_a_limit_that_lets_nothing_pass_has_no_delay(self):
        result = self.client.check("closed")
        self.assertEqual((result.allowed, result.delay), (False, None))
        self.assertNotIn("Retry-After", result.headers)

    def test_odd_keys_arrive_as_they_are(self):
        for key in ("login \0\n\"\\\x7f", "login é\u2028\U0001f980", "login " + "é" * 509):
            with self.subTest(key=key):
                self.assertEqual(self.client.check(key).limits[0].key, key)

    def test_keys_that_no_server_takes_are_told(self):
        for key in ("x" * 1025, "é" * 513, "\udcff", b"bytes", ["list"]):
            with self.subTest(key=key), self.assertRaises(InvalidKey):
                self.client.check("login fine", key)

    def test_wrong_requests_are_told(self):
        for ask, reason in [
            (lambda: self.client.check("jobs wrong"), "in_flight_key"),
            (lambda: self.client.check("login wrong", cost=0), "cost_zero"),
            (lambda: self.client.check("login wrong", cost=4), "cost_above_limit"),
            (lambda: self.client.check(), "field"),
            (lambda: self.client.check(*["many"] * 33), "too_many_keys"),
        ]:
            with self.assertRaises(InvalidRequest) as raised:
                ask()
            self.assertEqual((raised.exception.status, raised.exception.reason), (400, reason))
        self.assertTrue(self.client.wait("nobody knows it", max_wait=1e9).allowed)
        for wrong in (-1, 1e12, float("nan"), None, "3"):
            with self.assertRaisesRegex(ValueError, "max_wait: a number of seconds"):
                self.client.wait("login wrong", max_wait=wrong)

    def test_who_waits_goes_when_the_use_before_ends(self):
        with ThreadPoolExecutor() as threads, self.client.hold("jobs wait", hold_for=3600) as first:
            self.assertTrue(first.allowed)
            second = threads.submit(
                self.client.hold, "jobs wait", hold_for=3600, max_wait=PATIENCE
            )
            until(lambda: waiting() == 1)
            self.assertTrue(first.release())
            with second.result() as use:
                self.assertTrue(use.allowed)
        self.assertFalse(self.client.wait("closed", max_wait=0).allowed)

    def test_who_waits_too_long_is_refused(self):
        self.assertTrue(self.client.wait("login late", max_wait=0, cost=3).allowed)
        late = self.client.wait("login late", max_wait=0.05)
        self.assertEqual((late.allowed, late.refused_by), (False, "logins"))

    def test_a_wait_that_is_given_up_leaves_the_line(self):
        client = Client(timeout=PATIENCE)
        client.check("login left", cost=3)
        with ThreadPoolExecutor() as threads:
            waits = threads.submit(client.wait, "login left", max_wait=3000)
            until(lambda: waiting() == 1)
            client.close()
            until(lambda: waiting() == 0)
            with self.assertRaises(Closed):
                waits.result()
        for ask in (
            lambda: client.check("login left"),
            lambda: client.wait("login left", max_wait=1),
            lambda: client.hold("jobs left", hold_for=1),
            lambda: client.release("0"),
        ):
            with self.assertRaisesRegex(Closed, "the client is closed"):
                ask()

    def test_a_block_whose_client_is_closed_ends(self):
        with self.client.hold("jobs block", hold_for=0.001) as use:
            self.assertTrue(use.allowed)
            self.client.close()

    def test_a_use_is_released_once_and_after_an_exception(self):
        with self.assertRaises(ZeroDivisionError):
            with self.client.hold("jobs held", hold_for=3600) as use:
                self.assertTrue(use.allowed)
                self.assertFalse(self.client.hold("jobs held", hold_for=3600).allowed)
                raise ZeroDivisionError
        with self.client.hold("jobs held", hold_for=3600) as use:
            self.assertTrue(use.allowed)
            self.assertTrue(use.release())
            self.assertFalse(use.release())
            self.assertFalse(self.client.release(use.result.use))
            self.assertFalse(self.client.release("a b/\n?é"))
        with self.client.hold("login held", hold_for=3600) as use:
            self.assertTrue(use.allowed)
            self.assertIsNone(use.result.use)

    def test_what_the_server_decides_without_its_store_is_degraded(self):
        client = Client(os.environ["TIDEGATE_DEGRADED"], timeout=PATIENCE)
        result = client.check("login degraded")
        self.assertEqual((result.allowed, result.degraded, result.error), (True, True, None))
        self.assertEqual((result.limits[0].degraded, result.limits[0].remaining), (True, None))

    def test_a_server_with_an_authority_of_its_own_is_asked_with_a_certificate(self):
        papers = os.environ["TIDEGATE_PAPERS"]
        context = ssl.create_default_context(cafile=f"{papers}/ca.pem")
        context.load_cert_chain(f"{papers}/caller.pem", f"{papers}/caller.key")
        for ssl_context, error in ((context, type(None)), (None, Unreachable)):
            options = {"timeout": PATIENCE, "ssl_context": ssl_context}
            with Client(os.environ["TIDEGATE_TLS"], **options) as client:
                self.assertIsInstance(client.check("login tls").error, error)

    def test_a_fork_has_connections_of_its_own(self):
        self.assertTrue(self.client.check("login fork").allowed)
        self.in_child(lambda: self.client.check("login fork").limits[0].remaining == 1)
        self.assertEqual(self.client.check("login fork").limits[0].remaining, 0)

    def in_child(self, work):
        """Runs it in a forked child, which must say that it is so."""
        child = os.fork()
        if child == 0:
            signal.alarm(int(PATIENCE))
            try:
                os._exit(0 if work() else 1)
            finally:
                os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_a_child_that_closes_its_client_leaves_the_connections_of_its_parent(self):
        with stub(ALLOWED, closes=False) as url, Client(url, timeout=PATIENCE) as client:
            client.check("x")
            (connection,) = client._kept()
            self.in_child(lambda: client.close() is None)
            self.assertIsNone(client.check("x").error)
            self.assertEqual(client._kept(), [connection])

    def test_a_child_waits_for_no_lock_and_no_place_of_its_parent(self):
        asked = []
        with stub(None, ALLOWED, asked=asked) as url:
            with Client(url, timeout=PATIENCE, max_connections=1) as client:
                with ThreadPoolExecutor() as threads:
                    first = threads.submit(client.check, "x")
                    until(lambda: asked)
                    with client._lock:
                        self.in_child(lambda: client.check("x").error is None)
                    client.close()
                    with self.assertRaises(Closed):
                        first.result()


class Failing(unittest.TestCase):
    def decides(self, url, error, **options):
        for on_error, allowed in (("allow", True), ("deny", False)):
            client = Client(url, on_error=on_error, **options)
            for result in (
                client.check("x"),
                client.wait("x", max_wait=0),
                client.hold("x", hold_for=1).result,
            ):
                self.assertEqual((result.allowed, result.degraded), (allowed, True))
                self.assertIsInstance(result.error, error)
            with self.assertRaises(error):
                client.release("0")
            client.close()

    def test_no_server(self):
        self.decides(GONE, Unreachable, timeout=PATIENCE)

    def test_a_server_that_never_answers(self):
        with stub(None) as url:
            self.decides(url, TimedOut)

    def test_answers_that_decide_nothing(self):
        for useless in USELESS:
            with self.subTest(answer=useless[:80]), stub(useless) as url:
                self.decides(url, ServerError, timeout=PATIENCE)

    def test_answers_that_break_off(self):
        for broken in BROKEN:
            with self.subTest(answer=broken), stub(broken) as url:
                self.decides(url, Unavailable, timeout=PATIENCE)

    def test_another_server(self):
        with stub(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as url:
            error = Client(url, timeout=PATIENCE).check("x").error
            self.assertRegex(str(error), "404 is not an answer of Tidegate: check the URL")
        with Client(os.environ["TIDEGATE_SERVER"] + "/wrong", timeout=PATIENCE) as client:
            error = client.check("x").error
            self.assertIsInstance(error, ServerError)
            self.assertRegex(str(error), r"is this the \[http\] door\?")

    def test_a_connection_that_was_closed_while_idle_is_made_again(self):
        with stub(ALLOWED) as url, Client(url, timeout=PATIENCE) as client:
            for _ in range(5):
                self.assertIsNone(client.check("x").error)

    def test_a_request_is_sent_once_on_a_new_connection(self):
        asked = []
        with stub(b"", asked=asked) as url, Client(url, timeout=PATIENCE) as client:
            self.assertIsInstance(client.check("x").error, Unreachable)
            self.assertEqual(len(asked), 1)

    def test_a_release_is_tried_twice(self):
        asked = []
        with stub(b"", GONE_BACK, asked=asked) as url:
            self.assertTrue(Client(url, timeout=PATIENCE).release("0"))
        self.assertEqual(len(asked), 2)
        with stub(b"", asked=asked) as url, self.assertRaises(Unreachable):
            Client(url, timeout=PATIENCE).release("0")
        self.assertEqual(len(asked), 4)

    def test_a_use_whose_release_failed_can_be_released_again(self):
        asked = []
        with stub(HELD, b"", b"", GONE_BACK, asked=asked) as url:
            with Client(url, timeout=PATIENCE).hold("x", hold_for=1) as use:
                with self.assertRaises(Unreachable):
                    use.release()
                self.assertTrue(use.release())
                self.assertFalse(use.release())
        self.assertEqual(len(asked), 4)

    def test_an_answer_leaves_no_garbage(self):
        with stub(ALLOWED, closes=False) as url, Client(url, timeout=PATIENCE) as client:
            client.check("x")
            gc.collect()
            client.check("x")
            self.assertEqual(gc.collect(), 0)

    def test_a_release_waits_for_no_place_and_has_a_second(self):
        asked = []
        with stub(None, GONE_BACK, asked=asked) as url, ThreadPoolExecutor() as threads:
            with Client(url, timeout=PATIENCE, max_connections=1) as client:
                threads.submit(client.check, "x")
                until(lambda: asked)
                self.assertTrue(client.release("0"))
        for timeout, expected in ((0.1, 1), (5, 5)):
            self.assertEqual(Client(timeout=timeout)._settings.release_timeout, expected)

    def test_a_connection_that_tls_has_closed_while_idle_is_made_again(self):
        send = Client._send

        def send_or_break(client, connection, *request):
            if connection is kept:
                raise closed
            return send(client, connection, *request)

        with stub(ALLOWED, closes=False) as url, Client(url, timeout=PATIENCE) as client:
            for closed in (ssl.SSLEOFError(), ssl.SSLZeroReturnError()):
                client.check("x")
                (kept,) = client._kept()
                with unittest.mock.patch.object(Client, "_send", send_or_break):
                    self.assertIsNone(client.check("x").error)

    def test_a_connection_is_not_used_when_it_was_idle_for_long(self):
        now = [0.0]
        clock = unittest.mock.patch("tidegate.client.time.monotonic", lambda: now[0])
        with stub(ALLOWED, closes=False) as url, Client(url, timeout=PATIENCE) as client, clock:
            client.check("x")
            (first,) = client._kept()
            for now[0], is_first in ((60.0, True), (121.0, False)):
                client.check("x")
                self.assertEqual(client._kept() == [first], is_first)
            self.assertIsNone(first.sock)

    def test_an_answer_is_read_as_long_as_it_is(self):
        asked = []
        read = http.client.HTTPResponse.read

        def read_of(response, count):
            asked.append(count)
            return read(response, count)

        with stub(ALLOWED) as url, Client(url, timeout=PATIENCE) as client:
            with unittest.mock.patch.object(http.client.HTTPResponse, "read", read_of):
                self.assertIsNone(client.check("x").error)
        self.assertLess(asked[0], 100)

    def test_a_wait_whose_open_connection_breaks_late_is_sent_again(self):
        now, send = [0.0], Client._send

        def send_or_break(client, connection, *request):
            if connection is not kept:
                return send(client, connection, *request)
            now[0] += 2 * PATIENCE
            raise ConnectionResetError

        with stub(ALLOWED, closes=False) as url, Client(url, timeout=PATIENCE) as client:
            client.check("x")
            (kept,) = client._kept()
            clock = unittest.mock.patch("tidegate.client.time.monotonic", lambda: now[0])
            with clock, unittest.mock.patch.object(Client, "_send", send_or_break):
                self.assertIsNone(client.wait("x", max_wait=9 * PATIENCE).error)

    def test_a_client_that_is_closed_while_it_connects_asks_nothing(self):
        connect = http.client.HTTPConnection.connect

        def connect_slowly(connection):
            self.client.close()
            connect(connection)

        asked = []
        with stub(None, asked=asked) as url:
            self.client = Client(url, timeout=PATIENCE)
            with unittest.mock.patch.object(http.client.HTTPConnection, "connect", connect_slowly):
                with self.assertRaises(Closed):
                    self.client.wait("x", max_wait=3000)
        self.assertEqual(asked, [])

    def test_connections_are_few_and_stay_open(self):
        with stub(ALLOWED, closes=False) as url:
            with Client(url, timeout=PATIENCE, max_connections=2) as client:
                with ThreadPoolExecutor(8) as threads:
                    results = list(threads.map(lambda _: client.check("x"), range(200)))
                self.assertTrue(all(result.error is None for result in results))
                self.assertLessEqual(len(client._idle), 2)
        with stub(None) as url, Client(url, max_connections=1) as client:
            with ThreadPoolExecutor(2) as threads:
                for result in threads.map(lambda _: client.check("x"), range(2)):
                    self.assertIsInstance(result.error, TimedOut)

    def test_the_time_of_an_answer_is_that_of_all_its_bytes(self):
        # Bytes that go on coming, none of them late by itself.
        with stub(b"HTTP/1.1 200 OK\r\n", drips=True) as url:
            self.assertIsInstance(Client(url).check("x").error, TimedOut)

    def test_an_answer_that_has_come_is_read_late(self):
        now = [0.0]

        def read_until_late(connection, deadline):
            read_until(connection, deadline)
            until(lambda: connection.sock.recv(1, socket.MSG_PEEK))
            now[0] += 9 * PATIENCE

        read_until = client_module._read_until
        clock = unittest.mock.patch("tidegate.client.time.monotonic", lambda: now[0])
        late = unittest.mock.patch.object(client_module, "_read_until", read_until_late)
        with stub(ALLOWED) as url, Client(url, timeout=PATIENCE) as client, clock, late:
            self.assertIsNone(client.check("x").error)

    def test_a_wrong_timeout_of_the_environment_is_named(self):
        for wrong in ("soon", "0", "-1", "nan", "inf"):
            environment = unittest.mock.patch.dict(os.environ, TIDEGATE_TIMEOUT_MS=wrong)
            with self.subTest(wrong=wrong), environment:
                with self.assertRaisesRegex(ValueError, f"TIDEGATE_TIMEOUT_MS: '{wrong}' is not"):
                    Client()

    def test_a_password_is_not_printed(self):
        with self.assertRaises(ValueError) as raised:
            Client("http://ann:secret@127.0.0.1")
        self.assertNotIn("secret", str(raised.exception))

    def test_settings_are_examined(self):
        for options in (
            {"server": "127.0.0.1:8080"},
            {"server": "ftp://127.0.0.1"},
            {"timeout": 0},
            {"on_error": "raise"},
            {"max_connections": 0},
            {"max_waiting": -1},
        ):
            for kind in (Client, AsyncClient):
                with self.subTest(options=options, kind=kind), self.assertRaises(ValueError):
                    kind(**options)


class Keys(unittest.TestCase):
    def test_values_do_not_run_into_one_another(self):
        self.assertEqual(make_key("api", user="ann", n=1), "api user=ann n=1")
        odd = make_key("a b", **{"x=y": "1=2 3%\n\x7fé"})
        self.assertEqual(odd, "a%20b x%3Dy=1=2%203%25%0A%7Fé")

    def test_a_value_that_is_missing_is_told(self):
        with self.assertRaisesRegex(TypeError, "user is None"):
            make_key("api", user=None)

    def test_the_client_is_the_last_hop_that_is_not_trusted(self):
        trusted = networks(["192.0.2.0/24", "10.0.0.0/8"])
        for peer, forwarded_for, expected in [
            ("203.0.113.1", ["1.1.1.1"], "203.0.113.1"),
            ("192.0.2.1", [], "192.0.2.1"),
            ("192.0.2.1", ["6.6.6.6, 1.1.1.1"], "1.1.1.1"),
            ("192.0.2.1", ["6.6.6.6", "1.1.1.1"], "1.1.1.1"),
            ("192.0.2.1", ["6.6.6.6, 1.1.1.1, 10.1.1.1"], "1.1.1.1"),
            ("192.0.2.1", ["10.2.2.2, 10.1.1.1"], "10.2.2.2"),
            ("192.0.2.1", ["6.6.6.6, nonsense"], "192.0.2.1"),
            ("192.0.2.1", ["1.1.1.1:99"], "1.1.1.1"),
            ("192.0.2.1", ["[2001:db8::1]:99"], "2001:db8::1"),
            ("::ffff:192.0.2.1", ["2001:DB8:0::1"], "2001:db8::1"),
            ("fe80::1%eth0", [], "fe80::1"),
            ("", ["1.1.1.1"], "-"),
        ]:
            with self.subTest(peer=peer, forwarded_for=forwarded_for):
                self.assertEqual(client_address(peer, forwarded_for, trusted), expected)

    def test_a_network_that_is_none_is_told(self):
        for wrong in ("nonsense", "10.0.0.0/33", "10.0.0.5/8", "2001:db8::1/32", ""):
            with self.subTest(network=wrong), self.assertRaises(ValueError):
                networks([wrong])

    def test_the_addresses_of_an_ipv6_network_may_share_a_count(self):
        for bits, peer, expected in [
            (64, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            (50, "2001:db8:1:ffff:3:4:5:6", "2001:db8:1:c000::/50"),
            (128, "2001:db8::6", "2001:db8::6"),
            (64, "::ffff:192.0.2.1", "192.0.2.1"),
            (64, None, "-"),
        ]:
            with self.subTest(bits=bits, peer=peer):
                self.assertEqual(client_address(peer, [], ipv6_prefix=bits), expected)


if __name__ == "__main__":
    unittest.main()
