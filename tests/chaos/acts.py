"""What a program does with its loader. Every step is compared with the oracle's."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from random import Random
from typing import Any

from gpuloader import EOFException, LoaderError
from tests.chaos.case import Case
from tests.chaos.oracle import Follower, Wrong, check_batch, read_ids
from tests.chaos.sources import Source

EXIT_CODE = 7
_EPOCHS = 64  # a program has fewer epochs


class Ending(Exception):
    """The user's own error, which leaves a loop."""


def exhaust(iterator: Iterator[Any]) -> None:
    deque(iterator, 0)


def run_threads(targets: list[Callable[[], object]]) -> None:
    """Run functions in threads at once, and raise the error of the first one that has any."""
    with ThreadPoolExecutor(len(targets)) as pool:
        for running in [pool.submit(target) for target in targets]:
            running.result()


class Acts:
    """Acts with one loader after another over one source; `stepped` hears of each step by its number."""

    def __init__(self, case: Case, folder: str, stepped: Callable[[int], object]) -> None:
        self.case = case
        self.source = Source(case, folder)
        self.loader: Any = self.source.open()
        self.steps = 0
        self._stepped = stepped
        self._held: deque[tuple[Any, list[int]]] = deque()

    def renew(self) -> None:
        """End the loader and its workers, and make another one."""
        self.close()
        self.loader = self.source.open()

    def close(self) -> None:
        """End the loader and its workers; drop all batches after another look at them."""
        loader, self.loader = self.loader, None
        if hasattr(loader, "close"):
            loader.close()
        del loader
        while self._held:
            check_batch(self.case, *self._held.popleft())

    def end(self) -> None:
        """End the loader, and close the source's files."""
        self.close()
        self.source.close()

    def perform(self, act: str) -> None:
        """Perform one act, raising what the loader raises, and `Wrong` for wrong data."""
        name, _, number = act.partition(":")
        self.steps = 0
        if self.loader is None:  # an interrupt came while an earlier act made another one
            self.loader = self.source.open()
        if name in ("break", "close", "drop", "cycle", "raise"):
            self._leave(name, int(number))
        else:
            getattr(self, "_" + name.replace(" ", "_"))(*([int(number)] if number else []))

    def _keep(self, taken: list[tuple[Any, list[int]]]) -> None:
        """Hold batches as long as the case says, and look at them again before they go."""
        self._held.extend(taken)
        while len(self._held) > self.case.held:
            check_batch(self.case, *self._held.popleft())
        self.steps += 1
        self._stepped(self.steps)

    def _follow(self, epoch: Iterator[Any], follower: Follower | None = None) -> Iterator[Follower]:
        """Check one step after another, and at last that the epoch is complete."""
        for step in epoch:
            if follower is None:
                follower = Follower(self.case, self.loader.state_dict()["epoch"])
            self._keep(follower.take(step))
            del step
            yield follower
        (follower or Follower(self.case, 0)).finish()

    def _follow_until(self, steps: int) -> Follower | None:
        """Leave a new epoch after so many steps; return how far it got."""
        follower = None
        for follower in self._follow(iter(self.loader)):
            if follower.taken >= steps:
                break
        return follower

    def _loop(self, _: int = 0) -> None:
        exhaust(self._follow(iter(self.loader)))

    def _leave(self, how: str, steps: int) -> None:
        """Leave an epoch early, in one of the ways that Python offers."""
        epoch = iter(self.loader)
        following = self._follow(epoch)
        with suppress(Ending):
            for follower in following:
                if follower.taken < steps:
                    continue
                if how == "raise":
                    raise Ending
                break
        following.close()
        if how == "close":
            epoch.close()
        if how == "cycle":
            itself = [epoch, following]
            itself.append(itself)
            del itself
        del epoch, following
        if how == "cycle":
            gc.collect()

    def _two(self, steps: int) -> None:
        followings = [self._follow(iter(self.loader)) for _ in range(2)]
        for _ in range(steps):
            for following in followings:
                next(following, None)
        for following in followings:
            exhaust(following)

    def _threads(self, count: int) -> None:
        found: list[list[Any]] = [[] for _ in range(count)]
        run_threads([lambda steps=steps: steps.extend(self.loader) for steps in found])
        for steps in found:
            self._match(steps)

    def _match(self, steps: list[Any]) -> None:
        """Check the steps of an epoch whose number is unknown."""
        for epoch in reversed(range(_EPOCHS if self.case.order == "shuffle" else 1)):
            follower = Follower(self.case, epoch)
            try:
                for step in steps:
                    follower.take(step)
                follower.finish()
                return
            except Wrong:
                if not epoch:
                    raise

    def _shared(self, count: int) -> None:
        epoch = iter(self.loader)
        lock = threading.Lock()
        steps: list[Any] = []

        def loop() -> None:
            with suppress(StopIteration):
                while True:
                    with lock:  # otherwise their order would be lost
                        steps.append(next(epoch))

        run_threads([loop] * count)
        self._match(steps)

    def _fork(self, steps: int) -> None:
        """Fork in the middle of an epoch. The fork cannot go on with it, but has epochs of its own."""
        epoch = iter(self.loader)
        following = self._follow(epoch)
        taken = [next(following, None) for _ in range(steps)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
            pid = os.fork()
        if not pid:
            self._be_fork(epoch, is_open=taken[-1] is not None, politely=bool(steps % 2))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        exhaust(following)
        if code:
            raise Wrong(f"the fork of the program exited with code {code}")

    def _be_fork(self, epoch: Iterator[Any], *, is_open: bool, politely: bool) -> None:
        code = 1
        self.source.troubles.mute()  # they are for the program
        try:
            if is_open:
                with suppress(LoaderError, StopIteration):
                    next(epoch)  # what its parent has read already; anything else would be missing there
            self._match(list(self.loader))
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        if politely and not code:
            sys.exit(0)
        os._exit(code)

    def _resume(self, steps: int) -> None:
        """Leave an epoch, and resume it from its state with another loader, or with the same one."""
        follower = self._follow_until(steps)
        if follower is None:
            return
        state = json.loads(json.dumps(self.loader.state_dict()))
        if state["epoch"] != follower.epoch:
            return  # the epoch has ended
        if steps % 2:
            self.renew()
        try:
            self.loader.load_state_dict(state)
            exhaust(self._follow(iter(self.loader), follower))
        except KeyboardInterrupt:
            self.renew()  # before the epoch began, the state would be that of the next act
            raise

    def _flip(self, place: int) -> None:
        """Load a state with a flipped bit: it is refused, or batches of this dataset follow."""
        self._follow_until(1)
        text = bytearray(json.dumps(self.loader.state_dict()).encode())
        rng = Random(f"{self.case.seed} {place}")
        text[rng.randrange(len(text))] ^= 1 << rng.randrange(7)
        try:
            state = json.loads(text.decode())
        except ValueError:  # no state at all
            return
        try:
            self.loader.load_state_dict(state)
            for step in islice(self.loader, place):
                for part in [step] if self.case.places == 1 and not self.case.declared else step:
                    if not self.case.has_extra:
                        check_batch(self.case, part, read_ids(self.case, part))
        except (LoaderError, ValueError, TypeError):  # which the documentation names
            pass
        finally:
            self.renew()

    def _recover(self, _: int) -> None:
        """Loop; after an error resume with another loader from the state before it, and raise the error."""
        follower = None
        try:
            for follower in self._follow(iter(self.loader)):  # noqa: B007 - where it ended
                pass
        except LoaderError:
            state = json.loads(json.dumps(self.loader.state_dict()))
            self.renew()
            self.loader.load_state_dict(state)
            exhaust(self._follow(iter(self.loader), follower or Follower(self.case, state["epoch"])))
            raise

    def _started(self, steps: int) -> None:
        """Drive a reader's loader by hand: one epoch in part, and one to its end."""
        loader = self.source.open(iterable=False)
        single = Follower(self.case, 0)
        for last in (steps, None):
            loader.start()
            got: list[Any] = []
            with suppress(EOFException):
                while last is None or len(got) < last:
                    got.append(next(loader))
            loader.reset()
        batches = [numbers for step in single._steps for numbers in step]
        if self.case.places == 1 and len(got) != len(batches):
            raise Wrong(f"a started epoch had {len(got)} steps, expected {len(batches)}")
        for step, numbers in zip(got, batches, strict=False):
            (entry,) = step if isinstance(step[0], list) else [step]
            check_batch(self.case, entry, numbers)

    def _exit(self, steps: int) -> None:
        self._follow_until(steps + 1)
        sys.exit(EXIT_CODE)

    def _exit_at_once(self, steps: int) -> None:
        epoch = iter(self.loader)
        for _ in range(steps):
            next(epoch, None)
        os._exit(EXIT_CODE)

    def _unhandled(self, steps: int) -> None:
        self._follow_until(steps + 1)
        raise Ending

    def _daemon(self, steps: int) -> None:
        """Leave a thread behind that loops until the interpreter has gone."""
        turning = threading.Semaphore(0)

        def loop() -> None:
            while True:
                for _ in self.loader:
                    turning.release()
                turning.release()

        threading.Thread(target=loop, daemon=True).start()
        for _ in range(steps):
            turning.acquire()
        sys.exit(EXIT_CODE)
