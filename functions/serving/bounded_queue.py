"""A queue bounded in bytes as well as in number: what waits for somebody who is away must not fill the memory."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Waiting(Generic[Item]):
    """The newest items, at most so many and so large together. Safe between threads."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._items: deque[tuple[Item, int]] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: Item, size: int) -> int:
        """Enqueue an item of that many bytes; returns how many of the oldest were lost for it, itself perhaps."""
        with self._lock:
            self._items.append((item, size))
            self._bytes += size
            lost = 0
            while len(self._items) > self._most or self._bytes > self._most_bytes:
                self._bytes -= self._items.popleft()[1]
                lost += 1
            return lost

    def take(self, most: int) -> list[Item]:
        """The oldest items, at most so many; they are not in it any more."""
        with self._lock:
            taken = [self._items.popleft() for _ in range(min(most, len(self._items)))]
            self._bytes -= sum(size for _, size in taken)
            return [item for item, _ in taken]
