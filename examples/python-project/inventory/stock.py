from collections import Counter


class Stock:
    """What is there, and how much of it."""

    def __init__(self) -> None:
        self._items: Counter[str] = Counter()

    def add(self, name: str, count: int) -> None:
        self._items[name] += count

    def __str__(self) -> str:
        return "\n".join(f"{count:3} {name}" for name, count in sorted(self._items.items()))
