"""A test pays for the processor time it takes: its own and that of the children it waited for.

Wall time says how busy the machine was; processor time says what the test costs. A test that takes
more than BUDGET_SECONDS and is not marked slow fails. Not charged to a test: what shared fixtures
cost (they serve many tests), the first import of a large library (it serves the whole process), and
a halt of the machine (the kernel charges it to the process that it interrupts).
`--cpu-report` lists the most expensive tests and the total of each folder.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

BUDGET_SECONDS = 3.0
# What `spin` takes on the machine on which the budget was set; a slower one gets more time.
SPIN_SECONDS = 0.030
_SPINS = 8
# A test that loads so many modules was the first to import torch, transformers, plotly or the like.
LIBRARY_MODULES = 150
LOOK_SECONDS = 0.25
# Between two looks of `Halts` that are due every LOOK_SECONDS: no Python ran in this process.
HALT_SECONDS = 2.0
PROPERTY = "cpu_seconds"
SHARED_PROPERTY = "shared_cpu_seconds"


EVERYTHING = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def cpu_seconds(whose: tuple[int, ...] = EVERYTHING) -> float:
    """Processor time of this process and of all children it has waited for."""
    usages = (resource.getrusage(who) for who in whose)
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def children() -> set[int]:
    """The pids of this process's children, ended ones that no one waited for included."""
    pids: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids.update(map(int, path.read_text().split()))
    return pids


def spin() -> float:
    """Processor seconds of a fixed piece of work: how fast this machine is at this moment."""
    begin = time.process_time()
    total = 0
    for number in range(1_000_000):
        total += number & 7
    return time.process_time() - begin


def over_budget(seconds: float, budget: float | None = None) -> bool:
    """Whether the processor time is too much, also when the machine was slowed down by others.

    `budget`: seconds on the machine on which it was set; None = what a test may take.
    """
    budget = BUDGET_SECONDS if budget is None else budget
    if seconds <= budget:
        return False
    spins = [spin() for _ in range(_SPINS)]  # a virtual machine may stand still in between
    slower = max(1.0, sum(spins) / _SPINS / SPIN_SECONDS)
    return seconds > budget * max(slower, _crowded())


def least_seconds(work: Callable[[], object], times: int = 3) -> float:
    """Processor time of the cheapest of several calls, without the collector's visit to the
    objects of earlier tests: what the machine does meanwhile seldom meets all of them."""
    costs = list[float]()
    with quiet_collector():
        for _ in range(times):
            begin = time.process_time()
            work()
            costs.append(time.process_time() - begin)
    return min(costs)


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Garbage of earlier tests is not collected inside."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _crowded() -> float:
    """1 on an idle machine to 2 on a busy one, whose processes share caches and core halves.

    A spin after the test does not show it: it needs no memory, and the others may have ended.
    """
    return min(2.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


class Halts:
    """The processor time that was charged to this process while no Python of it ran.

    So it is when a virtual machine is halted for some seconds, and while the garbage collector
    visits the objects of thousands of tests. A thread sees it: its next look comes too late.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ended = threading.Event()
        threading.Thread(target=self._look, name="looks for halts", daemon=True).start()

    def end(self) -> None:
        self._ended.set()

    def _look(self) -> None:
        before, charged_before = time.monotonic(), time.process_time()
        while not self._ended.wait(LOOK_SECONDS):
            now, charged = time.monotonic(), time.process_time()
            if now - before > HALT_SECONDS:
                self.seconds += charged - charged_before
            before, charged_before = now, charged


class Account:
    """The processor time of the test that runs now."""

    def __init__(self, halts: Halts | None = None) -> None:
        self.halts = halts
        self.halted = halts.seconds if halts else 0.0
        self.children = children()
        self.begin = cpu_seconds()
        self.own_begin = cpu_seconds((resource.RUSAGE_SELF,))
        self.wall_begin = time.monotonic()
        self.modules = len(sys.modules)
        self.shared = 0.0
        self.sharing = False

    def own_seconds(self) -> float:
        """This process alone when a child of earlier tests was waited for.

        Such a child brings all of its time, and that of its own children, into this test. It is
        missed in `children` while the thread that started it ends; but then more processor time is
        added than all cores can give while the test runs.
        """
        added = cpu_seconds() - self.begin
        possible = (time.monotonic() - self.wall_begin) * (os.cpu_count() or 1)
        if added > possible or self.children - children():
            added = cpu_seconds((resource.RUSAGE_SELF,)) - self.own_begin
        return max(0.0, added - self.shared)

    def is_over_budget(self) -> bool:
        """Whether it took too much, without what a halt in the meantime was charged with."""
        if not over_budget(self.own_seconds()):
            return False
        if self.halts is None:
            return True
        time.sleep(2 * LOOK_SECONDS)  # a halt that has just ended is not seen yet
        return over_budget(self.own_seconds() - (self.halts.seconds - self.halted))

    def imported_a_library(self) -> bool:
        return len(sys.modules) - self.modules > LIBRARY_MODULES


class Budget:
    """The plugin: an account per test, a verdict after its call, a report at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.halts = Halts()
        self.account = Account(self.halts)
        self.costs: dict[str, float] = defaultdict(float)
        self.shared: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.account = Account(self.halts)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        if fixturedef.scope == "function" or self.account.sharing:
            return (yield)
        begin, self.account.sharing = cpu_seconds(), True
        try:
            return (yield)
        finally:
            self.account.shared += cpu_seconds() - begin
            self.account.sharing = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        result = yield
        seconds = self.account.own_seconds()
        marked = item.get_closest_marker("slow") or item.get_closest_marker("browser")
        if not marked and not self.account.imported_a_library() and self.account.is_over_budget():
            pytest.fail(
                f"{seconds:.1f} CPU s; a test that is not marked slow may take "
                f"{BUDGET_SECONDS:g}. Make it cheaper, or mark it slow.",
                pytrace=False,
            )
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[None]:
        seconds = self.account.own_seconds()
        result = yield
        if nextitem is not None and nextitem.parent is item.parent:
            seconds = self.account.own_seconds()  # else shared fixtures end in this teardown too
        item.user_properties.append((PROPERTY, seconds))
        item.user_properties.append((SHARED_PROPERTY, self.account.shared))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect from this process or, under xdist, from the workers' reports."""
        if report.when != "teardown":
            return
        properties = dict(report.user_properties)
        self.costs[report.nodeid] += float(str(properties.get(PROPERTY, 0.0)))
        self.shared[report.nodeid] += float(str(properties.get(SHARED_PROPERTY, 0.0)))

    def pytest_unconfigure(self) -> None:
        self.halts.end()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        count = self.config.getoption("--cpu-report")
        if count is None:
            return
        terminalreporter.section("processor time (own and waited-for children)")
        for line in report_lines(self.costs, self.shared, int(count)):
            terminalreporter.write_line(line)


def report_lines(costs: dict[str, float], shared: dict[str, float], count: int) -> list[str]:
    """The most expensive tests, then the folders."""
    dearest = sorted(costs, key=lambda name: costs[name], reverse=True)[:count]
    lines = [f"{costs[name]:8.2f} s  {name}" for name in dearest]
    folders: dict[str, list[str]] = defaultdict(list)
    for name in costs:
        folders[name.split("::")[0].rpartition("/")[0]].append(name)
    lines.append(f"{'tests':>10} {'fixtures':>10}  folder (CPU s)")
    for folder in sorted(folders):
        own = sum(costs[name] for name in folders[folder])
        lines.append(f"{own:10.1f} {sum(shared[name] for name in folders[folder]):10.1f}  {folder}")
    lines.append(f"{sum(costs.values()):10.1f} {sum(shared.values()):10.1f}  all")
    return lines


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu-report",
        nargs="?",
        const=30,
        type=int,
        metavar="N",
        help="list the N tests that took most processor time (30) and the total of each folder",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Budget(config), "cpu_budget")
