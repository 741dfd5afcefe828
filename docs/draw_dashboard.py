"""Draws docs/images/dashboard.svg: the panels of `tidegate dashboard`, filled by a real run.

A gate calls the fault server for a minute and a half, with an outage in the middle; Prometheus scrapes it and
answers the dashboard's own queries. Grafana draws the same figures more finely. Needs `prometheus` (Debian's
package).
"""  # noqa: INP001 a script

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path

from tidegate import AsyncClient, BreakerPolicy, CallError, Gate, Limits, Prices, RetryPolicy, SpendCap, tags
from tidegate.testing import FaultServer

RUN_S = 90
OUTAGE_S = (35, 55)
VARIABLES = {"$job": ".*", "$__rate_interval": "10s", "$__range": f"{RUN_S}s"}
COLUMN, ROW, MARGIN = 50, 26, 8
COLOURS = ("#3274d9", "#e0752d", "#56a64b", "#a352cc", "#c4162a", "#0f9d9d", "#b8860b", "#777777")
MODELS = ("gpt-4.1-mini", "gpt-4.1")


def main() -> None:
    """Run, ask, draw."""
    gate = Gate(
        retry=RetryPolicy(),
        limits=Limits(concurrency=8, learn=False),
        breaker=BreakerPolicy(window=10, minimum_calls=20, open_for=8, reopen_for=3),
        prices=Prices(
            {"gpt-4.1-mini": {"input": "0.40", "output": "1.60"}, "gpt-4.1": {"input": "2", "output": "8"}}
        ),
        spend=SpendCap("2"),
    )
    outage = {"match": {"between_s": list(OUTAGE_S)}, "respond": {"status": 503}}
    limit = {"match": {"every": 40}, "respond": {"status": 429, "error": "rate_limit", "retry_after_s": 0.2}}
    usage = {"prompt_tokens": 800, "completion_tokens": 150, "cached_tokens": 300}
    with (
        FaultServer(rules=[outage, limit], latency_ms=(40, 400), usage=usage) as upstream,
        exposition(gate) as port,
        tempfile.TemporaryDirectory() as folder,
        prometheus(Path(folder), port) as ask,
    ):
        start = time.time()
        asyncio.run(load(gate, upstream.url))
        picture = draw(ask, start, time.time())
    (Path(__file__).parent / "images" / "dashboard.svg").write_text(picture, encoding="utf-8")


async def load(gate: Gate, url: str) -> None:
    """Make some twenty calls per second, one tool run per ten calls."""
    client = AsyncClient(url, "key", gate=gate, total_timeout=10)
    tasks = set()
    end = time.monotonic() + RUN_S
    number = 0
    while time.monotonic() < end:
        number += 1
        with tags(route=("summarise", "chat", "classify")[number % 3]):
            question = {"model": MODELS[number % 5 == 0], "messages": [], "max_tokens": 200}
            tasks.add(asyncio.create_task(call(client, question)))
        if number % 10 == 0:
            gate.once(f"charge:{number}", charge_card)
        if number % 50 == 0:
            gate.once(f"charge:{number}", charge_card)
        await asyncio.sleep(0.05)
    await asyncio.gather(*tasks)


def charge_card() -> str:
    """Stand for a tool."""
    return "receipt"


async def call(client: AsyncClient, question: dict[str, object]) -> None:
    """Make a call; the dashboard tells how it ended."""
    with contextlib.suppress(CallError):
        await client.post("/chat/completions", json=question)


class exposition:  # noqa: N801 used as a function
    """Serve the gate's metrics; the value is the port."""

    def __init__(self, gate: Gate) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = gate.metrics_text().encode()
                self.send_response(200)
                self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self) -> int:
        self.thread.start()
        return self.server.server_address[1]

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class prometheus:  # noqa: N801 used as a function
    """Run Prometheus on that port; the value is a function that asks it for a range."""

    def __init__(self, folder: Path, target: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        scrape = {"job_name": "my-service", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
        config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}
        # YAML reads JSON.
        (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
        self.arguments = [
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=error",
        ]

    def __enter__(self):  # noqa: ANN204
        self.process = subprocess.Popen(self.arguments)  # noqa: S603
        while self.process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5).close()
                break
            time.sleep(0.1)
        return self.ask

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def ask(
        self, query: str, start: float, end: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Return labels and values of each series, one value per second."""
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        arguments = urllib.parse.urlencode({"query": query, "start": start, "end": end, "step": 1})
        url = f"http://127.0.0.1:{self.port}/api/v1/query_range?{arguments}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found = json.load(answer)["data"]["result"]
        return [
            (series["metric"], [(at, float(value)) for at, value in series["values"] if value != "NaN"])
            for series in found
        ]


def draw(ask, start: float, end: float) -> str:  # noqa: ANN001
    """Return the picture."""
    panels = json.loads(resources.files("tidegate").joinpath("dashboard.json").read_text("utf-8"))["panels"]
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    width, height = 24 * COLUMN, bottom * ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#f4f5f5"/>',
    ]
    for panel in panels:
        place = panel["gridPos"]
        x, y = place["x"] * COLUMN, place["y"] * ROW
        if panel["type"] == "row":
            parts.append(
                f'<text x="{x + MARGIN}" y="{y + 18}" font-size="14">{html.escape(panel["title"])}</text>'
            )
            continue
        found = [
            (legend(target["legendFormat"], labels), values)
            for target in panel["targets"]
            for labels, values in ask(target["expr"], start, end)
        ]
        # The legend has room for a few: those that there is something to see of.
        found.sort(key=lambda series: -max((value for _, value in series[1]), default=0.0))
        box = (x + 3, y + 3, place["w"] * COLUMN - 6, place["h"] * ROW - 6)
        parts.append(draw_panel(panel, found, box, (start, end)))
    return "\n".join([*parts, "</svg>\n"])


def legend(template: str, labels: dict[str, str]) -> str:
    """Fill in the labels of a series."""
    for name, value in labels.items():
        template = template.replace("{{" + name + "}}", value or "(none)")
    return template


def draw_panel(panel, found, box, times) -> str:  # noqa: ANN001
    """Return one panel with its series."""
    x, y, width, height = box
    title = html.escape(panel["title"])
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="white" stroke="#ddd"/>',
        f'<text x="{x + MARGIN}" y="{y + 16}" font-size="12" font-weight="bold">{title}</text>',
    ]
    if not any(values for _, values in found):
        parts.append(
            f'<text x="{x + width / 2}" y="{y + height / 2}" font-size="12" fill="#999">No data</text>'
        )
        return "\n".join(parts)
    left, top, right, bottom = x + 48, y + 26, x + width - MARGIN, y + height - 24
    highest = max(value for _, values in found for _, value in values) or 1.0
    if panel["type"] == "stat":
        value = f"{found[0][1][-1][1]:.4f} USD"
        parts.append(
            f'<text x="{x + width / 2}" y="{y + height / 2 + 10}" font-size="30" fill="{COLOURS[2]}"'
            f' text-anchor="middle">{value}</text>'
        )
        return "\n".join(parts)
    for share in (0, 0.5, 1):
        line = bottom - share * (bottom - top)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{line:.1f}" y2="{line:.1f}" stroke="#eee"/>')
        parts.append(
            f'<text x="{left - 4}" y="{line + 4:.1f}" font-size="10" fill="#666" text-anchor="end">'
            f"{short(highest * share)}</text>"
        )
    at = left
    for number, (name, values) in enumerate(found):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{left + (when - times[0]) / (times[1] - times[0]) * (right - left):.1f},"
            f"{bottom - value / highest * (bottom - top):.1f}"
            for when, value in values
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        shown = name.replace("http://", "")
        if at < right - 6 * len(shown):
            place = f'x="{at}" y="{y + height - 7}" font-size="10"'
            parts.append(f'<text {place} fill="{colour}">{html.escape(shown)}</text>')
            at += 6 * len(shown) + 14
    return "\n".join(parts)


def short(value: float) -> str:
    """Return three digits."""
    return f"{value / 1000:.3g}k" if value >= 1000 else f"{value:.3g}"  # noqa: PLR2004


if __name__ == "__main__":
    main()
