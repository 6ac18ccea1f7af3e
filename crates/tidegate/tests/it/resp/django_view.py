"""django-ratelimit on Django's own Redis cache: a view that takes two requests from each client.

Prints whether each request was served, then what the cache itself sees.
"""

import sys
from types import SimpleNamespace

import django
import django_ratelimit.core
from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["*"],
    CACHES={
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": sys.argv[1],
        }
    },
)
django.setup()

from django.core.cache import cache
from django.http import HttpResponse
from django.test import RequestFactory
from django_ratelimit.decorators import ratelimit
from django_ratelimit.exceptions import Ratelimited

# Its windows begin by the clock: a test that meets such a moment would see two of them.
django_ratelimit.core.time = SimpleNamespace(time=lambda: 1_700_000_000)


@ratelimit(key="ip", rate="2/d")
def view(request):
    return HttpResponse("served")


def ask(address):
    try:
        return view(RequestFactory().get("/", REMOTE_ADDR=address)).content.decode()
    except Ratelimited:
        return "limited"


print("one", [ask("192.0.2.1") for _ in range(3)])
print("another", [ask("192.0.2.2")])
print("cache", cache.add("k", 1, 60), cache.add("k", 1, 60), cache.incr("k"), cache.get("k"))
