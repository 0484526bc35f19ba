"""Connections that Ctrl-C may interrupt at any time."""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from queue import SimpleQueue
from typing import Any, Self, TypeVar

import httpx2

T = TypeVar("T")


class Connections:
    """An `httpx2.Client` whose requests run in threads of their own; a context manager that closes it.

    Ctrl-C raises `KeyboardInterrupt` in the main thread, between any two of its steps. In httpx2 it can come when a
    lock has just been taken and the block that gives it back has not yet begun: whoever needs the lock next waits for
    ever, be it the interrupted request, which tidies up, or the next one, which is to stop a run. So the main thread
    only waits; an interrupted request ends by itself, and its answer is lost.

    Args:
        options: arguments of `httpx2.Client`, which reads nothing from the environment.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._http, self._owner = httpx2.Client(trust_env=False, **self._options), os.getpid()
        self.timeout = self._http.timeout

    def request(self, method: str, url: str, **options: Any) -> httpx2.Response:
        """Returns the answer to a request, read to its end."""

        def answer() -> Generator[httpx2.Response, None, None]:
            yield http.request(method, url, **options)

        http = self._of_this_process()
        with closing(_elsewhere(answer)) as answers:
            return next(answers)

    def stream(
        self, read: Callable[[httpx2.Response], Generator[T, None, None]], method: str, url: str, **options: Any
    ) -> Generator[T, None, None]:
        """What `read` takes piece by piece from the answer to a request; a piece is read when it is asked for."""

        def pieces() -> Generator[T, None, None]:
            with http.stream(method, url, **options) as response:
                yield from read(response)

        http = self._of_this_process()
        return _elsewhere(pieces)

    def close(self) -> None:
        """Close the connections; those of the process from which this one was forked stay its own."""
        if os.getpid() == self._owner:
            self._http.close()

    def _of_this_process(self) -> httpx2.Client:
        """The client; a forked process gets its own: on a shared one each would read answers to the other."""
        if os.getpid() != self._owner:
            self._http, self._owner = httpx2.Client(trust_env=False, **self._options), os.getpid()
        return self._http

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _elsewhere(make: Callable[[], Generator[T, None, None]]) -> Generator[T, None, None]:
    """The items of a generator that runs in another thread, each when it is asked for.

    Of what the main thread does here, an interrupt can break nothing: `threading.Thread.start` waits with locks of its
    own, so the thread is started directly.
    """
    asked: SimpleQueue[bool] = SimpleQueue()
    given: SimpleQueue[tuple[T, ...] | BaseException] = SimpleQueue()

    def work() -> None:
        with suppress(Exception), closing(make()) as items:  # who would hear of an error in closing has left
            while asked.get():
                try:
                    given.put((next(items),))
                except StopIteration:
                    given.put(())
                except BaseException as error:
                    given.put(error)

    _thread.start_new_thread(work, ())
    try:
        while True:
            asked.put(True)
            item = given.get()
            if isinstance(item, BaseException):
                raise item
            if not item:
                return
            yield item[0]
    finally:
        asked.put(False)
