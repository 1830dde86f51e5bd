"""Queue bounded by item count and bytes, so that items for an unavailable receiver do not exhaust memory."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class BoundedQueue(Generic[Item]):
    """Thread-safe queue that keeps the newest items within limits for their number and total size."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items, self._max_bytes = max_items, max_bytes
        self._items: deque[tuple[Item, int]] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: Item, size: int) -> int:
        """Enqueue an item of `size` bytes; drop the oldest items beyond the limits, and return their number."""
        with self._lock:
            self._items.append((item, size))
            self._bytes += size
            lost = 0
            while len(self._items) > self._max_items or self._bytes > self._max_bytes:
                self._bytes -= self._items.popleft()[1]
                lost += 1
            return lost

    def take(self, max_items: int) -> list[Item]:
        """Remove and return the oldest items, at most `max_items`."""
        with self._lock:
            taken = [self._items.popleft() for _ in range(min(max_items, len(self._items)))]
            self._bytes -= sum(size for _, size in taken)
            return [item for item, _ in taken]
