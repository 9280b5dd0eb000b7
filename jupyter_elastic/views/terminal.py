"""Draws the pool's page in a terminal with Rich. Knows a `PoolScreen` and the time zone."""

from __future__ import annotations

import time

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from jupyter_elastic.client.human_times import human_range, human_time
from jupyter_elastic.types.texts import visible
from jupyter_elastic.views.pool_screen import HostBox, JobRow, PoolScreen, ShareRow, SlotBox

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")
_BARS = "▁▂▃▄▅▆▇█"


def picture(screen: PoolScreen, *, down_since: float | None = None, rows: int = 20, width: int = 80) -> RenderableType:
    """Draw the pool as one picture with at most `rows` jobs."""
    colours = _colours(screen)
    parts: list[RenderableType] = []
    if down_since is not None:
        since = time.strftime("%H:%M:%S", time.localtime(down_since))
        parts.append(Text(f"The pool has not answered since {since}. Jobs go on.", style="bold red"))
    if screen.problem:
        parts.append(Text(screen.problem, style="bold red"))
    if screen.maintenance:
        parts.append(Text(visible(screen.maintenance), style="bold yellow"))
    parts += [_head(screen), *(_host(host, colours, screen.at) for host in screen.hosts), _title("jobs")]
    parts.append(_jobs(screen, colours, rows))
    hidden = screen.total_jobs - min(rows, len(screen.jobs))
    if hidden > 0:
        parts.append(Text(f"and {hidden:,} more", style="dim"))
    if screen.shares:
        parts += [_title("shares: in use / fair share"), _shares(screen.shares, screen, colours)]
    if len(screen.history) > 1:
        parts += [_title("history: slots in use"), _history(screen, width)]
    if screen.notes:
        parts += [_title("what the policy did"), _notes(screen)]
    return Group(*parts)


def _colours(screen: PoolScreen) -> dict[str, str]:
    """Return a colour for each user, the same from picture to picture."""
    users = sorted({row.owner for row in screen.jobs} | {row.user for row in screen.shares})
    return {user: COLOURS[index % len(COLOURS)] for index, user in enumerate(users)}


def _title(text: str) -> Rule:
    return Rule(text, align="left", style="dim")


def _head(screen: PoolScreen) -> Text:
    slots = [slot for host in screen.hosts for slot in host.slots if not slot.for_servers]
    free = sum(slot.state == "free" for slot in slots)
    usable = sum(slot.state != "out" for slot in slots)
    unit = "GPUs" if screen.kind == "gpu" else "CPU slots (no GPUs here)"
    line = Text.assemble((f"{free} of {usable} {unit} free", "bold"), f" · policy {screen.policy}")
    if screen.policy_options:
        line.append(" " + " ".join(f"{name}={value}" for name, value in screen.policy_options.items()), "dim")
    return line.append(f" · you are {screen.user}" if screen.user else "")


def _host(host: HostBox, colours: dict[str, str], now: float) -> Text:
    line = Text(f"{host.name} ")
    first = next((slot for slot in host.slots if slot.for_servers), None)
    for slot in host.slots:
        if slot is first:
            line.append("for servers: ", "dim")
        line.append(*_box(slot, colours)).append(" ")
    about = [host.url, f"out: {host.out}" if host.out else ""]
    if host.until is not None:
        at = time.strftime("%m-%d %H:%M", time.localtime(host.until))
        about[1:1] = [f"ends {at}" if now < host.until else f"ended {at}"]
    return line.append(visible(" · ".join(filter(None, about))), "dim")


def _box(slot: SlotBox, colours: dict[str, str]) -> tuple[str, str]:
    colour = colours.get(slot.owner, "white")
    match slot.state:
        case "leased":
            return f"[{slot.job}]", f"bold {colour}"
        case "draining":
            return f"[{slot.job}…]", f"dim {colour}"
        case "out":
            return "[x]", "red"
        case _:
            return "[ ]", "dim"


def _jobs(screen: PoolScreen, colours: dict[str, str], rows: int) -> RenderableType:
    if not screen.jobs:
        return Text("no jobs", style="dim")
    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    for name in ("ID", "NAME", "OWNER", "SLOTS", "STATE"):
        table.add_column(
            name, justify="right" if name in {"ID", "SLOTS"} else "left", overflow="ellipsis", no_wrap=True
        )
    table.add_column("", width=16)
    for row in screen.jobs[:rows]:
        wants = str(row.max_slots) if row.min_slots == row.max_slots else f"{row.min_slots}:{row.max_slots}"
        bar = "" if row.fraction is None else ProgressBar(total=1.0, completed=row.fraction, width=16)
        owner = f"[{colours.get(row.owner, 'white')}]{escape(visible(row.owner))}[/]"
        table.add_row(
            str(row.job), escape(visible(row.name)), owner, f"{row.held}/{wants}", escape(_state(row, screen.at)), bar
        )
    return table


def _state(row: JobRow, now: float) -> str:
    if row.position is None:
        return f"{row.phase} for {human_time(now - (row.started_at or row.submitted_at))}"
    wait = f", starts in {human_range(*row.wait_s)}" if row.wait_s else ""
    if row.reason.startswith("start not known"):
        wait = f", {row.reason}"
    return f"#{row.position} in the queue{wait}"


def _shares(shares: list[ShareRow], screen: PoolScreen, colours: dict[str, str]) -> Table:
    slots = (slot for host in screen.hosts for slot in host.slots if not slot.for_servers)
    capacity = max(1, sum(slot.state != "out" for slot in slots))
    table = Table(box=None, pad_edge=False, show_header=False)
    for share in shares[:10]:
        colour = colours.get(share.user, "white")
        bar = ProgressBar(total=capacity, completed=share.held, width=24, complete_style=colour, finished_style=colour)
        waits = f", {share.queued} waiting" if share.queued else ""
        table.add_row(
            f"[{colour}]{escape(visible(share.user))}[/]", bar, f"{share.held} of {share.entitled:.1f}{waits}"
        )
    return table


def _history(screen: PoolScreen, width: int) -> Text:
    """Draw slots in use over time as one line of bars."""
    points, begin = screen.history, screen.history[0].at
    columns = max(10, min(width - 24, 100))
    step = max(screen.at - begin, 1.0) / columns
    line, index = "", 0
    for column in range(columns):
        while index + 1 < len(points) and points[index + 1].at <= begin + (column + 0.5) * step:
            index += 1
        used = sum(points[index].leased.values()) / max(1, points[index].capacity)
        line += _BARS[min(len(_BARS) - 1, round(used * (len(_BARS) - 1)))]
    return Text.assemble((f"{human_time(screen.at - begin)} ago ", "dim"), (line, "cyan"), (" now", "dim"))


def _notes(screen: PoolScreen) -> Text:
    lines = []
    for note in screen.notes[:5]:
        job = "" if note.job is None else f"job {note.job}: "
        lines.append(f"{time.strftime('%H:%M:%S', time.localtime(note.at))}  {job}{visible(note.text)}")
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
