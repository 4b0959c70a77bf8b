"""Draw charts as SVG without scripts and style attributes. Pure; Markup escapes every text."""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from conquiet.dashboard.formatting import clock, duration, number, rate
from conquiet.management.history import Deploy, History, quantile

_WIDTH: Final = 520
_HEIGHT: Final = 140
_LEFT: Final = 46
_TOP: Final = 10
_BASE: Final = _HEIGHT - 22


def sparkline(points: Sequence[float], *, label: str, width: int = 120, height: int = 24) -> Markup:
    """Return a small line of the points, oldest first; a flat one if all are zero."""
    top = max(points, default=0)
    if not points or top <= 0:
        return Markup(
            '<svg class="spark" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">'
            '<path class="flat" d="M1 {y}H{e}"/></svg>'
        ).format(w=width, h=height, label=f"{label}: nothing", y=height - 2, e=width - 1)
    step = (width - 2) / max(1, len(points) - 1)
    at = [(1 + i * step, height - 2 - (height - 4) * value / top) for i, value in enumerate(points)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    area = f"M1 {height - 1}L" + "L".join(f"{x:.1f} {y:.1f}" for x, y in at) + f"L{width - 1} {height - 1}Z"
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" role="img" aria-label="{label}"><title>{label}</title>'
        '<path class="area" d="{area}"/><polyline points="{line}"/></svg>'
    ).format(w=width, h=height, label=f"{label}: at most {number(top)}", area=area, line=line)


def throughput(history: History) -> Markup:
    """Return bars of successes and failures per second, with deploys."""
    seconds = history.step_s
    ok = [point.ok / seconds for point in history.points]
    failed = [point.failed / seconds for point in history.points]
    top = max((a + b for a, b in zip(ok, failed, strict=True)), default=0.0)
    width = (_WIDTH - _LEFT - 4) / max(1, len(ok))
    bars = Markup()
    for i, point in enumerate(history.points):
        if not point.ok and not point.failed:
            continue
        x = _LEFT + i * width
        good, bad = _scaled(ok[i], top), _scaled(failed[i], top)
        title = f"{clock(point.at_s * 1000)}: {number(point.ok)} ok, {number(point.failed)} failed"
        bars += Markup(
            '<g><title>{title}</title><rect class="ok" x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}"/>'
        ).format(title=title, x=x, y=_BASE - good, w=max(0.6, width - 0.8), h=good)
        if bad:
            bars += Markup('<rect class="bad" x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}"/>').format(
                x=x, y=_BASE - good - bad, w=max(0.6, width - 0.8), h=bad
            )
        bars += Markup("</g>")
    return _frame("Attempts per second", f"{rate(top)}/s" if top else "", history, bars)


def latency(history: History) -> Markup:
    """Return the lines of p50 and p95 of the handling time, with deploys."""
    lines = {share: [quantile(point.handling, share) for point in history.points] for share in (0.5, 0.95)}
    top = max((value for line in lines.values() for value in line if value is not None), default=0.0)
    drawn = Markup()
    for share, line in lines.items():
        width = (_WIDTH - _LEFT - 4) / max(1, len(line))
        path = ""
        for i, value in enumerate(line):
            if value is None:
                continue
            lone = i == 0 or line[i - 1] is None
            x = _LEFT + (i + 0.5) * width
            path += f"{'M' if lone else 'L'}{x:.1f} {_BASE - _scaled(value, top):.1f}"
            if lone and (i + 1 == len(line) or line[i + 1] is None):
                path += "h2"
        drawn += Markup('<path class="p{share}" d="{path}"/>').format(share=round(share * 100), path=path)
    return _frame("Handling time, p50 and p95", duration(top) if top else "", history, drawn)


def _frame(title: str, top: str, history: History, content: Markup) -> Markup:
    first, last = history.points[0].at_s, history.points[-1].at_s + history.step_s
    parts = Markup('<svg class="chart" viewBox="0 0 {w} {h}" role="img" aria-label="{title}">').format(
        w=_WIDTH, h=_HEIGHT, title=title
    )
    parts += Markup('<path class="grid" d="M{l} {t}H{r}M{l} {m}H{r}M{l} {b}H{r}"/>').format(
        l=_LEFT, r=_WIDTH - 4, t=_TOP, m=(_TOP + _BASE) / 2, b=_BASE
    )
    parts += Markup('<text x="{x}" y="{y}" text-anchor="end">{text}</text>').format(x=_LEFT - 6, y=_TOP + 4, text=top)
    parts += Markup('<text x="{x}" y="{y}" text-anchor="end">0</text>').format(x=_LEFT - 6, y=_BASE + 4)
    parts += content
    for mark in history.deploys:
        if first <= mark.at_s < last:
            parts += _mark(mark, _LEFT + (_WIDTH - _LEFT - 4) * (mark.at_s - first) / (last - first))
    for x, anchor, at_s in ((_LEFT, "start", first), (_WIDTH - 4, "end", last)):
        parts += Markup('<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>').format(
            x=x, y=_HEIGHT - 6, anchor=anchor, text=clock(at_s * 1000)[5:16]
        )
    return parts + Markup("</svg>")


def _mark(deploy: Deploy, x: float) -> Markup:
    return Markup(
        '<g class="deploy"><title>{title}</title><path d="M{x:.1f} {t}V{b}"/>'
        '<path class="flag" d="M{x:.1f} {t}l7 4l-7 4z"/></g>'
    ).format(title=f"{deploy.version} started at {clock(deploy.at_s * 1000)}", x=x, t=_TOP, b=_BASE)


def _scaled(value: float, top: float) -> float:
    return (_BASE - _TOP) * value / top if top else 0.0
