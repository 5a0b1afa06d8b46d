"""A retry without an end."""

import anyio

from agentloop import Agent, ToolContext, tool


class Weather:
    places = {"rome": 21, "oslo": 4}  # noqa: RUF012

    async def read(self, place: str) -> int:
        await anyio.sleep(0.1)
        if place not in self.places:
            raise ConnectionError("no answer")
        return self.places[place]


@tool
async def weather(ctx: ToolContext[Weather], place: str) -> str:
    """Tell the weather."""
    while True:
        try:
            return f"{await ctx.context.read(place)} degrees"
        except ConnectionError:
            await anyio.sleep(1)


@tool(name="weather")
async def patient_weather(ctx: ToolContext[Weather], place: str) -> str:
    """Tell the weather."""
    for _ in range(5):
        try:
            return f"{await ctx.context.read(place)} degrees"
        except ConnectionError:
            await anyio.sleep(1)
    return "unknown"


faulty = Agent("weather", tools=[weather])
sound = Agent("weather", tools=[patient_weather])
make_context = Weather
