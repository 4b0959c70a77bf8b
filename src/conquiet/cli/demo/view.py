"""The same story twice: live on a terminal, and as plain lines for a log or a pipe."""

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from conquiet.cli.demo.board import State
from conquiet.cli.demo.ledger import Ledger

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PLAIN_EVERY_S = 1.0
_BAR = 40


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """What is shown of one worker."""

    name: str
    pid: int
    state: State
    alive: bool
    handled: int
    recovered: int
    in_hand: int

    @property
    def status(self) -> str:
        """One word."""
        if not self.alive:
            return "killed -9"
        return self.state.name.lower()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at everything."""

    total: int
    elapsed_s: float = 0.0
    handled: int = 0
    pending: int = 0
    waiting: int | None = None
    held_back: int = 0
    duplicates: int = 0
    recovered: int = 0
    workers: tuple[WorkerLine, ...] = ()

    @property
    def settled(self) -> bool:
        """Every order was delivered and acknowledged."""
        return self.drained and self.held_back == 0

    @property
    def drained(self) -> bool:
        """Every order that was enqueued so far was."""
        return self.waiting == 0 and self.pending == 0

    @property
    def progress(self) -> tuple[object, ...]:
        """What changes as long as anything goes on."""
        return self.handled, *(worker.state for worker in self.workers)

    @property
    def in_hand(self) -> int:
        """Messages that live workers hold."""
        return sum(worker.in_hand for worker in self.workers if worker.alive)


class View(Protocol):
    """Shows the course of the demo. Used as a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, sentence: str) -> None:
        """Tell an event."""
        ...

    def show(self, snapshot: Snapshot) -> None:
        """Show where things stand."""
        ...

    def close_with(self, ledger: Ledger) -> None:
        """Show the ledger."""
        ...


class Rate:
    """Orders per second over the last few looks."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def of(self, snapshot: Snapshot) -> float:
        """Take a look into account and return the rate."""
        self._seen = [*self._seen[-9:], (snapshot.elapsed_s, snapshot.handled)]
        (then_s, before), (now_s, now) = self._seen[0], self._seen[-1]
        return (now - before) / (now_s - then_s) if now_s > then_s else 0.0


class PlainView:
    """One line a second and one per event; no colour, no cursor movement."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._rate = Rate()
        self._elapsed_s = 0.0
        self._next_s = _PLAIN_EVERY_S

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, sentence: str) -> None:
        """Print an event."""
        self._line(sentence)

    def show(self, snapshot: Snapshot) -> None:
        """Print a line if a second has passed."""
        self._elapsed_s = snapshot.elapsed_s
        rate = self._rate.of(snapshot)
        if snapshot.elapsed_s >= self._next_s or snapshot.settled:
            self._next_s = snapshot.elapsed_s + _PLAIN_EVERY_S
            self._line(
                f"{snapshot.handled:,} of {snapshot.total:,} done, {rate:,.0f}/s, in hand {snapshot.in_hand}, "
                f"pending {snapshot.pending}, recovered {snapshot.recovered}"
            )

    def close_with(self, ledger: Ledger) -> None:
        """Print the ledger."""
        self._console.print()
        for what, how_much in ledger.lines():
            self._console.print(f"{what:<26}{how_much}", highlight=False, markup=False)
        self._console.print(verdict(ledger), highlight=False, markup=False)

    def _line(self, text: str) -> None:
        self._console.print(f"{self._elapsed_s:6.1f} s  {text}", highlight=False, markup=False, soft_wrap=True)


class LiveView:
    """A picture that redraws itself: bar, numbers, workers; events scroll by above it."""

    def __init__(self, console: "Console") -> None:
        from rich.live import Live

        self._console = console
        self._rate = Rate()
        self._elapsed_s = 0.0
        self._live = Live(console=console, refresh_per_second=10, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def say(self, sentence: str) -> None:
        """Print an event above the picture."""
        from rich.text import Text

        style = "bold red" if "killed" in sentence else "green" if "took over" in sentence else "default"
        self._console.print(Text.assemble((f"{self._elapsed_s:6.1f} s  ", "dim"), (sentence, style)))

    def show(self, snapshot: Snapshot) -> None:
        """Redraw the picture."""
        self._elapsed_s = snapshot.elapsed_s
        self._live.update(picture(snapshot, self._rate.of(snapshot)))

    def close_with(self, ledger: Ledger) -> None:
        """Print the ledger in place of the picture."""
        from rich.table import Table

        self._live.stop()
        table = Table(title="Ledger", show_header=False, title_justify="left")
        for what, how_much in ledger.lines():
            wrong = (what in {"lost", "done twice", "still unsettled"} and how_much != "0") or "wrong" in how_much
            table.add_row(what, f"[{'bold red' if wrong else 'bold'}]{how_much}[/]")
        self._console.print(table)
        self._console.print(f"[{'bold green' if ledger.balanced else 'bold red'}]{verdict(ledger)}[/]", highlight=False)


def picture(snapshot: Snapshot, rate: float) -> "RenderableType":
    """Return bar, numbers and workers as one picture."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=snapshot.total, completed=snapshot.handled, width=_BAR),
        f"{snapshot.handled:,} of {snapshot.total:,}",
        f"[bold]{rate:,.0f}/s[/]",
        f"in hand {snapshot.in_hand}",
        f"pending {snapshot.pending}",
        f"recovered {snapshot.recovered}",
    )
    workers = Table(box=None, pad_edge=False)
    for column in ("worker", "pid", "state", "handled", "recovered", "in hand"):
        workers.add_column(column, justify="left" if column in {"worker", "state"} else "right", header_style="dim")
    for worker in snapshot.workers:
        workers.add_row(
            worker.name,
            str(worker.pid or "-"),
            f"[{'red' if not worker.alive else 'green'}]{worker.status}[/]",
            f"{worker.handled:,}",
            f"{worker.recovered:,}",
            str(worker.in_hand),
        )
    return Group(bar, workers)


def verdict(ledger: Ledger) -> str:
    """Return the last line."""
    rate = ledger.processed / ledger.seconds if ledger.seconds else 0.0
    if ledger.balanced:
        return (
            f"Nothing lost, nothing done twice: {ledger.processed:,} orders in {ledger.seconds:.1f} s ({rate:,.0f}/s)."
        )
    return "The ledger does not balance. This is a bug: please report it with this output."
