"""Middleware for Django. Its settings are the dictionary `TIDEGATE` of the project's.

    MIDDLEWARE = ["tidegate.django.TidegateMiddleware", ...]
    TIDEGATE = {"key": "shop.limits.key"}
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import Callable

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.utils.module_loading import import_string

from .answers import InvalidKey, InvalidRequest
from .client import Client
from .keys import client_address, make_key, networks, prefix
from .middleware import Keys, Refusal, Watch, bad_key, listed, refusal


def client_key(
    name: str, trusted_proxies: Iterable[str] = (), *, ipv6_prefix: int = 128
) -> Callable[[HttpRequest], str]:
    """A key of the client's address: `<name> client=192.0.2.7`.

    It is the address that the request came from. Only if `trusted_proxies` have that address is
    X-Forwarded-For trusted. With an `ipv6_prefix` of 64 all IPv6 addresses of a network share the
    key `<name> client=2001:db8:1:2::/64`.
    """
    trusted, bits = networks(trusted_proxies), prefix(ipv6_prefix)

    def key(request: HttpRequest) -> str:
        forwarded_for = [request.META.get("HTTP_X_FORWARDED_FOR", "")]
        peer = request.META.get("REMOTE_ADDR")
        return make_key(name, client=client_address(peer, forwarded_for, trusted, bits))

    return key


class TidegateMiddleware:
    """Asks for a use of the key of each request, and answers 429 where it is refused.

    `TIDEGATE["key"]` makes a key of a request, or several, or none for a request without
    limits. The other entries are `cost` and the arguments of `tidegate.Client`.
    """

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response
        options = dict(getattr(settings, "TIDEGATE", {}))
        key = options.pop("key", None)
        if isinstance(key, str):
            key = import_string(key)
        if not callable(key):
            told = 'TIDEGATE["key"] must be a function that makes a key from a request'
            raise ImproperlyConfigured(told)
        self._key: Callable[[HttpRequest], Keys] = key
        self._cost = options.pop("cost", 1)
        self._watch = Watch()
        unknown = options.keys() - signature(Client).parameters.keys()
        if unknown:
            raise ImproperlyConfigured(f"TIDEGATE has no setting {min(map(str, unknown))!r}")
        try:
            self._client = Client(**options)
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"TIDEGATE: {error}") from error

    def __call__(self, request: HttpRequest) -> HttpResponse:
        keys = listed(self._key(request))
        if not keys:
            return self._get_response(request)
        try:
            result = self._client.check(*keys, cost=self._cost)
        except InvalidKey:
            return _response(bad_key())
        except InvalidRequest as error:
            # What is wrong is how the middleware was set up: as though there were no server.
            result = self._client.without_answer(error)
        self._watch.note(result)
        refused = refusal(result)
        if refused is not None:
            return _response(refused)
        response = self._get_response(request)
        for name, value in result.headers.items():
            response.headers.setdefault(name, value)
        return response


def _response(refused: Refusal) -> HttpResponse:
    return HttpResponse(refused.body, status=refused.status, headers=refused.headers)
