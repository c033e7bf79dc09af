"""A wire that takes its time: what comes is handed on so much later, in both directions, in order.

``python -m tests.agent.relay ADDRESS PORT SECONDS`` listens there, and hands on to the same port of 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

_PIECE = 1 << 16
_WAITING = 4096
"""Pieces on their way; then whoever sends has to wait."""


async def _hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_WAITING)

    async def write() -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(due - loop.time())
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        writer.close()

    writing = asyncio.create_task(write())
    with contextlib.suppress(OSError):
        while data := await reader.read(_PIECE):
            await waiting.put((loop.time() + delay, data))
    await waiting.put((loop.time() + delay, b""))
    await writing


async def _serve(address: str, port: int, delay: float) -> None:
    async def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_hand_on(reader, there[1], delay), _hand_on(there[0], writer, delay))

    async with await asyncio.start_server(came, address, port) as server:
        print("listens", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
