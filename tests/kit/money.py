"""A type that only the application knows, and the converter that knows it."""

from typing import Any

import cattrs


class Money:
    """An amount in EUR; its form in JSON is text such as `"5 EUR"`."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    def __hash__(self) -> int:
        return hash(self.cents)


def read_money(value: Any, _: Any) -> Money:
    """Return the amount that *value*, its form in JSON, means."""
    if not isinstance(value, str) or not value.endswith(" EUR"):
        raise ValueError("an amount in EUR is needed")
    return Money(100 * int(value.removesuffix(" EUR")))


def money_converter() -> cattrs.Converter:
    """Return a new converter that knows `Money`."""
    converter = cattrs.Converter()
    converter.register_structure_hook(Money, read_money)
    converter.register_unstructure_hook(Money, lambda money: f"{money.cents // 100} EUR")
    return converter
