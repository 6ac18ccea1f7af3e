"""A FastAPI application that serves each client address as often as the server's rules allow.

    PORT=3000 python fastapi_app.py
"""

import os

import uvicorn
from fastapi import FastAPI
from tidegate.asgi import TidegateMiddleware, client_key

app = FastAPI()
app.add_middleware(TidegateMiddleware, key=client_key("web"))


@app.get("/")
async def index() -> dict[str, str]:
    return {"hello": "world"}


if __name__ == "__main__":
    port = int(os.environ.get("PORT", "3000"))
    # Otherwise uvicorn itself believes X-Forwarded-For where it comes from this machine.
    uvicorn.run(app, host="127.0.0.1", port=port, proxy_headers=False)
