"""Both middlewares, in the frameworks that they are for, over real sockets."""

import http.client
import json
import logging
import socket
import threading
import unittest
from contextlib import contextmanager
from wsgiref.simple_server import WSGIRequestHandler, make_server

import uvicorn
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.test.utils import override_settings
from django.urls import path
from fastapi import FastAPI
from starlette.requests import Request
from stub import ALLOWED_BODY, GONE, PATIENCE, answer, stub
from tidegate import Client, Result, TimedOut, asgi
from tidegate.aio import AsyncClient
from tidegate.asgi import TidegateMiddleware
from tidegate.django import TidegateMiddleware as DjangoMiddleware
from tidegate.django import client_key as in_django
from tidegate.middleware import Watch

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["tidegate.django.TidegateMiddleware"],
)
urlpatterns = [path("<path:any>", lambda request, any: HttpResponse("served"))]


@contextmanager
def fastapi(key, **options):
    """A FastAPI application in uvicorn."""
    app = FastAPI()
    app.add_middleware(TidegateMiddleware, key=key, client=AsyncClient(**options))

    @app.get("/{path:path}")
    async def serve(path: str) -> str:
        return "served"

    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=[[listener]], daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(PATIENCE)
    listener.close()


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def django(key, **options):
    """A Django application in Python's own WSGI server."""
    with override_settings(TIDEGATE={"key": key, **options}):
        server = make_server("127.0.0.1", 0, WSGIHandler(), handler_class=Quiet)
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def visit(port, name):
    """The status, headers and body of one visit."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", "/a", headers={"X-User": name})
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, response.headers, body


class Limited(unittest.TestCase):
    def setUp(self):
        for name in ("tidegate", "django.request"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

    def key(self, request):
        user = request.headers["X-User"]
        return None if user == "operator" else f"login {self.id()} {user}"

    def each(self, **options):
        for framework in (fastapi, django):
            def key(request):
                key = self.key(request)
                return f"{key} {framework.__name__}" if isinstance(key, str) else key

            with self.subTest(framework=framework.__name__), framework(key, **options) as port:
                yield port

    def test_the_fourth_visit_is_refused(self):
        for port in self.each(timeout=PATIENCE):
            for _ in range(3):
                self.assertEqual(visit(port, "ann")[0], 200)
            status, headers, body = visit(port, "ann")
            self.assertEqual((status, headers["Content-Type"]), (429, "application/problem+json"))
            self.assertTrue(0 < int(headers["Retry-After"]) <= 1200)
            told = json.loads(body)
            self.assertEqual((told["status"], told["reason"]), (429, "over_limit"))
            self.assertEqual(told["refused_by"], "logins")
            self.assertEqual(visit(port, "ben")[0], 200)
            for _ in range(5):
                self.assertEqual(visit(port, "operator")[0], 200)

    def test_what_the_server_says_of_its_limits_is_handed_on(self):
        says = 'RateLimit-Policy: "a";q=5;w=60\r\nRateLimit: "a";r=4;t=30\r\n'
        body = '{"allowed":%s,"delay_ms":1,"refused_by":null,"limits":[]}'
        for allowed, status in (("true", 200), ("false", 429)):
            line = {200: "200 OK", 429: "429 Too Many Requests"}[status]
            with stub(answer(body % allowed, line, says)) as url:
                for port in self.each(server=url, timeout=PATIENCE):
                    told, headers, _ = visit(port, "ann")
                    self.assertEqual(told, status)
                    self.assertEqual(headers["RateLimit-Policy"], '"a";q=5;w=60')
                    self.assertEqual(headers["RateLimit"], '"a";r=4;t=30')

    def test_a_key_that_cannot_be_sent_is_no_way_around_the_limit(self):
        for port in self.each(timeout=PATIENCE):
            status, _, body = visit(port, "x" * 1024)
            self.assertEqual((status, json.loads(body)["reason"]), (400, "key"))

    def test_without_a_server_requests_pass_or_are_told_to_come_back(self):
        for on_error, expected in (("allow", 200), ("deny", 503)):
            for port in self.each(server=GONE, on_error=on_error, timeout=PATIENCE):
                for _ in range(4):
                    status, headers, _ = visit(port, "ann")
                    self.assertEqual(status, expected)
                self.assertEqual(headers.get("Retry-After"), "1" if status == 503 else None)

    def test_a_request_that_the_server_calls_wrong_is_decided_as_without_a_server(self):
        self.key = lambda request: "jobs cannot end"
        for on_error, expected in (("allow", 200), ("deny", 503)):
            for port in self.each(on_error=on_error, timeout=PATIENCE):
                self.assertEqual(visit(port, "ann")[0], expected)

    def test_a_request_without_keys_has_no_limit(self):
        for none in (None, [], ()):
            self.key = lambda request: none
            for port in self.each(server=GONE, on_error="deny", timeout=PATIENCE):
                self.assertEqual(visit(port, "ann")[0], 200)

    def test_an_outage_is_logged_once(self):
        logging.getLogger("tidegate").setLevel(logging.WARNING)
        for port in self.each(server=GONE, timeout=PATIENCE):
            with self.assertLogs("tidegate") as logs:
                for _ in range(3):
                    visit(port, "ann")
            self.assertEqual(len(logs.records), 1)


class Watching(unittest.TestCase):
    def test_answers_that_fail_now_and_then_do_not_fill_the_log(self):
        logging.getLogger("tidegate").setLevel(logging.WARNING)
        now = 0.0
        late, fine = Result(True, 0, error=TimedOut("late")), Result(True, 0)
        watch = Watch(lambda: now)
        with self.assertLogs("tidegate") as logs:
            for second in range(100):
                now = float(second)
                watch.note(late if second % 9 == 0 else fine)
            self.assertEqual(len(logs.records), 1)
            # The last failure was at 99.
            for second, lines in ((108, 1), (109, 2), (110, 2), (200, 2)):
                now = float(second)
                watch.note(fine)
                self.assertEqual(len(logs.records), lines)
            watch.note(Result(False, None, error=TimedOut("late")))
        told = [record.getMessage() for record in logs.records]
        failing = "requests are %s without Tidegate: late"
        self.assertEqual(
            told, [failing % "allowed", "Tidegate answers again", failing % "refused"]
        )


class Raw(unittest.IsolatedAsyncioTestCase):
    async def test_an_application_may_leave_out_its_headers(self):
        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 204})
            await send({"type": "http.response.body"})

        async def send(message):
            sent.append(message)

        sent = []
        scope = {"type": "http", "headers": []}
        with stub(answer(ALLOWED_BODY, headers='RateLimit: "a";r=4;t=30\r\n')) as url:
            async with AsyncClient(url, timeout=PATIENCE) as client:
                middleware = TidegateMiddleware(app, key=lambda _: "x", client=client)
                await middleware(scope, None, send)
        self.assertEqual(sent[0]["headers"], [(b"ratelimit", b'"a";r=4;t=30')])
        self.assertEqual(len(sent), 2)


class Ending(unittest.IsolatedAsyncioTestCase):
    async def test_a_client_of_its_own_is_closed_with_the_application(self):
        async def app(scope, receive, send):
            await send({"type": "lifespan.shutdown.complete"})

        async def send(message):
            sent.append(message["type"])

        for given in (None, AsyncClient(timeout=PATIENCE)):
            sent = []
            middleware = TidegateMiddleware(app, key=str, client=given)
            client = middleware._client
            await client.check("login ending")
            await middleware({"type": "lifespan"}, None, send)
            self.assertEqual(sent, ["lifespan.shutdown.complete"])
            self.assertEqual(client._loop_and_pools == (None, []), given is None)
            # The application may start again, unless it has closed the client itself.
            await client.aclose()
            served = []

            async def send_of_request(message):
                served.append(message.get("status"))

            async def answer_in_place(scope, receive, send):
                await send({"type": "http.response.start", "status": 204})

            middleware._key, middleware._app = lambda _: "login again", answer_in_place
            await middleware({"type": "http", "headers": []}, None, send_of_request)
            self.assertEqual(served[0], 204 if given is None else 503)
            await middleware._client.aclose()


class Settings(unittest.TestCase):
    def test_wrong_settings_are_told_at_the_start(self):
        for wrong in ({}, {"key": 5}, {"key": str, "sever": "x"}, {"key": str, "on_error": "x"}):
            with self.subTest(wrong=wrong), override_settings(TIDEGATE=wrong):
                with self.assertRaises(ImproperlyConfigured):
                    DjangoMiddleware(lambda request: HttpResponse())
        with override_settings(TIDEGATE={"key": str, "sever": "x"}):
            with self.assertRaisesRegex(ImproperlyConfigured, "has no setting 'sever'"):
                DjangoMiddleware(lambda request: HttpResponse())
        with override_settings(TIDEGATE={"key": "tidegate.make_key"}):
            self.assertIsInstance(DjangoMiddleware(lambda r: HttpResponse())._client, Client)

    def test_both_make_the_same_key_of_an_address(self):
        scope = {"type": "http", "headers": [], "client": ("2001:db8:1:2:3:4:5:6", 9)}
        request = HttpRequest()
        request.META["REMOTE_ADDR"] = "2001:db8:1:2:3:4:5:6"
        for bits, expected in ((128, "2001:db8:1:2:3:4:5:6"), (64, "2001:db8:1:2::/64")):
            for client_key, asked in ((asgi.client_key, Request(scope)), (in_django, request)):
                key = client_key("web", ipv6_prefix=bits)(asked)
                self.assertEqual(key, f"web client={expected}")
                with self.assertRaises(ValueError):
                    client_key("web", ipv6_prefix=0)


if __name__ == "__main__":
    unittest.main()
