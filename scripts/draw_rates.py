# Draws runs a second over time, a line for each file of "SECONDS RATE ..." lines,
# and from when on a snapshot was held. For scripts/bench-old-snapshot.
#
#   draw_rates.py SNAPSHOT-AT OUT.svg NAME.rates...

import os
import sys

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.fonttype"] = "none"
matplotlib.rcParams["svg.hashsalt"] = "reconcile"
import matplotlib.pyplot as plt  # noqa: E402
import matplotlib.ticker  # noqa: E402

COLORS = ["#1f6fb4", "#d9822b", "#7a7a7a"]
LABELS = {"reconcile": "reconcile", "skip-locked": "FOR UPDATE SKIP LOCKED", "graphile": "graphile-worker"}


def main():
    snapshot_at, out, files = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
    figure, axes = plt.subplots(figsize=(9, 4.5))
    end = 0
    for color, name in zip(COLORS, files):
        with open(name, encoding="ascii") as lines:
            points = [tuple(map(float, line.split())) for line in lines]
        seconds, rates = list(zip(*points))[:2]
        end = max(end, seconds[-1])
        label = os.path.splitext(os.path.basename(name))[0]
        axes.plot(seconds, rates, color=color, linewidth=1.8)
        axes.annotate(LABELS.get(label, label), (seconds[-1], rates[-1]), xytext=(6, 0),
                      textcoords="offset points", color=color, va="center", fontsize=10)
    axes.axvspan(snapshot_at, end, color="#f3efe2", zorder=0)
    axes.annotate("a snapshot is held", (snapshot_at, 0), xycoords=("data", "axes fraction"),
                  xytext=(6, 6), textcoords="offset points", va="bottom", color="#8a7a45", fontsize=10)
    axes.set_xlim(0, end)
    axes.set_yscale("log")
    axes.set_ylim(bottom=10)
    axes.yaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("seconds")
    axes.set_ylabel("runs a second")
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(out, bbox_inches="tight", metadata={"Date": None})


main()
