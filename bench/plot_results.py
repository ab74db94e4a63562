"""Plots of bench/results for docs/benchmarks.md: docs/gpu-ttft.svg, docs/gpu-throughput.svg.

`pip install matplotlib && python bench/plot_results.py`
"""

import json
import pathlib

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402: after the choice of a renderer

ROOT = pathlib.Path(__file__).resolve().parents[1]
SHAPE = "Llama-3.1-8B"
STYLES = {"text": ("text", "#b8442f", "o"), "kv": ("KV injected", "#1f6f8b", "s"),
          "ceiling": ("ceiling: vLLM's prefix cache", "#8a8a8a", "^")}


def rows(name: str) -> list[dict]:
    document = json.loads((ROOT / f"bench/results/{name}.json").read_text())
    return [row for row in document["rows"] if row["shape"] == SHAPE]


def plot(file: str, x_title: str, y_title: str, series: dict[str, list[tuple[float, float]]],
         **scales) -> None:
    figure, axes = plt.subplots(figsize=(5.2, 3.4))
    for mode, points in series.items():
        label, colour, marker = STYLES[mode]
        axes.plot(*zip(*sorted(points), strict=True), label=label, color=colour, marker=marker,
                  markersize=4)
    axes.set(xlabel=x_title, ylabel=y_title, **scales)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / file, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    plt.rcParams["svg.hashsalt"] = "inferscale"  # the same file from the same figures
    ttft = [row for row in rows("ttft") if row["system_tokens"] == 0]
    plot("gpu-ttft.svg", "facts (about 31 tokens each)", "time to first token, ms",
         {mode: [(row["k"], row["ttft_ms"]) for row in ttft if row["mode"] == mode]
          for mode in STYLES})
    throughput = rows("throughput")
    plot("gpu-throughput.svg", "users at once, 2,000 fact tokens each", "requests a second",
         {mode: [(row["users"], row["requests_per_s"]) for row in throughput if row["mode"] == mode]
          for mode in STYLES})


if __name__ == "__main__":
    main()
