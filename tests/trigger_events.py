"""Triggers at work, and the events that they make."""

import asyncio

SOON = 0.02
"""Seconds between two looks."""


async def collect(trigger, count, seconds=20.0):
    """The payloads of the first events of a trigger."""
    events = []
    async with asyncio.timeout(seconds):
        async for event in trigger.run():
            events.append(event.payload)
            if len(events) == count:
                break
    return events
