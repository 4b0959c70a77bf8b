"""Print the demo: a live display on a terminal, plain lines in a log or a pipe."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from conquiet.cli.demo.shared_state import DemoWorkerRow, DemoWorkerState
from conquiet.cli.demo.summary import Summary

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PLAIN_EVERY_S = 1.0
_BAR = 40


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """Displayed values of one worker."""

    name: str
    alive: bool
    row: DemoWorkerRow

    @property
    def state(self) -> DemoWorkerState:
        """Its state, or its last state before it was killed."""
        return DemoWorkerState(self.row.state)

    @property
    def status(self) -> str:
        """Its state in one word."""
        return self.state.name.lower() if self.alive else "killed -9"


@dataclass(frozen=True, slots=True)
class DemoSnapshot:
    """State of orders and workers at one moment."""

    total: int
    elapsed_s: float = 0.0
    handled: int = 0
    pending: int = 0
    waiting: int | None = None
    held_back: int = 0
    recovered: int = 0
    workers: tuple[WorkerLine, ...] = ()

    @property
    def settled(self) -> bool:
        """True if every order was delivered and acknowledged."""
        return self.drained and self.held_back == 0

    @property
    def drained(self) -> bool:
        """True if every order enqueued so far was delivered and acknowledged."""
        return self.waiting == 0 and self.pending == 0

    @property
    def progress(self) -> tuple[object, ...]:
        """Values that change while work is done."""
        return self.handled, *(worker.state for worker in self.workers)

    @property
    def in_flight(self) -> int:
        """Messages that live workers hold."""
        return sum(worker.row.in_flight for worker in self.workers if worker.alive)


class Rate:
    """Orders per second over the last ten snapshots."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def of(self, snapshot: DemoSnapshot) -> float:
        """Add a snapshot and return the rate."""
        self._seen = [*self._seen[-9:], (snapshot.elapsed_s, snapshot.handled)]
        (then_s, before), (now_s, now) = self._seen[0], self._seen[-1]
        return (now - before) / (now_s - then_s) if now_s > then_s else 0.0


class DemoView:
    """Prints one line per second and one per event; no colour, no cursor movement. A context manager."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._rate = Rate()
        self._elapsed_s = 0.0
        self._next_s = _PLAIN_EVERY_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def log(self, sentence: str) -> None:
        """Print an event."""
        self._console.print(f"{self._elapsed_s:6.1f} s  {sentence}", highlight=False, markup=False, soft_wrap=True)

    def show(self, snapshot: DemoSnapshot) -> None:
        """Print a line if a second has passed."""
        self._elapsed_s = snapshot.elapsed_s
        rate = self._rate.of(snapshot)
        if snapshot.elapsed_s >= self._next_s or snapshot.settled:
            self._next_s = snapshot.elapsed_s + _PLAIN_EVERY_S
            self.log(
                f"{snapshot.handled:,} of {snapshot.total:,} done, {rate:,.0f}/s, in flight {snapshot.in_flight}, "
                f"pending {snapshot.pending}, recovered {snapshot.recovered}"
            )

    def show_summary(self, summary: Summary) -> None:
        """Print the summary."""
        self._console.print()
        for what, how_much in summary.lines():
            self._console.print(f"{what:<26}{how_much}", highlight=False, markup=False)
        self._console.print(verdict(summary), highlight=False, markup=False)


class LiveView(DemoView):
    """Redraws a display of bar, numbers and workers; events scroll above it."""

    def __init__(self, console: "Console") -> None:
        from rich.live import Live

        super().__init__(console)
        self._live = Live(console=console, refresh_per_second=10, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def log(self, sentence: str) -> None:
        """Print an event above the display."""
        from rich.text import Text

        style = "bold red" if "killed" in sentence else "green" if "took over" in sentence else "default"
        self._console.print(Text.assemble((f"{self._elapsed_s:6.1f} s  ", "dim"), (sentence, style)))

    def show(self, snapshot: DemoSnapshot) -> None:
        """Redraw the display."""
        self._elapsed_s = snapshot.elapsed_s
        self._live.update(render(snapshot, self._rate.of(snapshot)))

    def show_summary(self, summary: Summary) -> None:
        """Print the summary in place of the display."""
        from rich.table import Table

        self._live.stop()
        table = Table(title="Summary", show_header=False, title_justify="left")
        for what, how_much in summary.lines():
            wrong = (what in {"lost", "done twice", "still unsettled"} and how_much != "0") or "wrong" in how_much
            table.add_row(what, f"[{'bold red' if wrong else 'bold'}]{how_much}[/]")
        self._console.print(table)
        self._console.print(
            f"[{'bold green' if summary.balanced else 'bold red'}]{verdict(summary)}[/]", highlight=False
        )


def render(snapshot: DemoSnapshot, rate: float) -> "RenderableType":
    """Return bar, numbers and workers as one display."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=snapshot.total, completed=snapshot.handled, width=_BAR),
        f"{snapshot.handled:,} of {snapshot.total:,}",
        f"[bold]{rate:,.0f}/s[/]",
        f"in flight {snapshot.in_flight}",
        f"pending {snapshot.pending}",
        f"recovered {snapshot.recovered}",
    )
    workers = Table(box=None, pad_edge=False)
    for column in ("worker", "pid", "state", "handled", "recovered", "in flight"):
        workers.add_column(column, justify="left" if column in {"worker", "state"} else "right", header_style="dim")
    for worker in snapshot.workers:
        workers.add_row(
            worker.name,
            str(worker.row.pid or "-"),
            f"[{'red' if not worker.alive else 'green'}]{worker.status}[/]",
            f"{worker.row.handled:,}",
            f"{worker.row.recovered:,}",
            str(worker.row.in_flight),
        )
    return Group(bar, workers)


def verdict(summary: Summary) -> str:
    """Return the last line."""
    rate = summary.processed / summary.seconds if summary.seconds else 0.0
    if summary.balanced:
        done = f"{summary.processed:,} orders in {summary.seconds:.1f} s ({rate:,.0f}/s)"
        return f"Nothing lost, nothing done twice: {done}."
    return "The numbers do not agree. This is a bug: please report it with this output."
