"""Retention of dead letters. Needed because a dead letter is otherwise trimmed only when another is written."""

from conquiet.processor.dead_letters import DeadLetters
from conquiet.processor.delayed import Poll
from conquiet.processor.keys import Keys
from conquiet.processor.settings import ProcessorSettings
from conquiet.redis_transport.client import AsyncClient


async def apply_retention(client: AsyncClient, settings: ProcessorSettings, keys: Keys, found: Poll) -> None:
    """Delete dead letters beyond the maximum age or number, if a poll found any."""
    most, age_s = settings.dead_letters_max, settings.dead_letters_max_age_s
    too_many = most is not None and found.dead > most
    age_ms = 0 if found.oldest_dead_ms is None else found.now_ms - found.oldest_dead_ms
    if too_many or (age_s is not None and age_ms > age_s * 1000):
        await DeadLetters(client, keys.stream).trim(max_count=most, max_age_s=age_s)
