"""A Django application that serves each client address as often as the server's rules allow.

    PORT=3000 python django_app.py
"""

import os
from wsgiref.simple_server import make_server

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from tidegate.django import client_key

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["tidegate.django.TidegateMiddleware"],
    TIDEGATE={"key": client_key("web")},
)


def index(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello, world")


urlpatterns = [path("", index)]

if __name__ == "__main__":
    server = make_server("127.0.0.1", int(os.environ.get("PORT", "3000")), get_wsgi_application())
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
