"""The three questions with asyncio.

    python asynchronous.py
"""

import asyncio

from tidegate.aio import AsyncClient


async def main() -> None:
    async with AsyncClient() as tidegate:
        checked = await tidegate.check("login client=192.0.2.7")
        print("login:", "allowed" if checked.allowed else "refused")

        waited = await tidegate.wait("mail", max_wait=30)
        print("mail:", "sent" if waited.allowed else "not now")

        async with tidegate.hold("jobs", hold_for=60) as job:
            print("job:", "runs" if job.allowed else "turned away")


asyncio.run(main())
