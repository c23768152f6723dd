# Draws the panels of a Grafana dashboard from a Prometheus server: each panel's
# own expressions, at its own place. For scripts/dashboard-picture.
#
#   draw_dashboard.py DASHBOARD.json PROMETHEUS-URL FROM TO STEP OUT.png
#
# Times in seconds since 1970; $__rate_interval becomes 15 s.

import json
import sys
import urllib.parse
import urllib.request

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import FancyBboxPatch  # noqa: E402
from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: E402

BACKGROUND, PANEL, TEXT, GRID = "#111217", "#181b1f", "#ccccdc", "#2c2f36"
COLORS = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "blue": "#5794f2",
          "yellow": "#fade2a", "gray": "#4b4f58"}
CYCLE = ["#73bf69", "#fade2a", "#ff7383", "#5794f2", "#b877d9", "#ff9830"]


def number(value, unit):
    if unit == "percentunit":
        return f"{value:.1%}"
    if unit == "s":
        if value == 0:
            return "0"
        return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"
    if unit == "bytes":
        return f"{value / 1048576:.3g} MB" if value >= 1048576 else f"{value / 1024:.3g} kB"
    return f"{value:,.4g}" + ("/s" if unit == "ops" else "")


class Picture:
    def __init__(self, dashboard, url, start, end, step):
        self.dashboard, self.url = dashboard, url
        self.start, self.end, self.step = start, end, step

    def query(self, expression):
        expression = expression.replace("$__rate_interval", "15s").replace("$reconciler", ".*")
        parameters = urllib.parse.urlencode(
            {"query": expression, "start": self.start, "end": self.end, "step": self.step})
        with urllib.request.urlopen(f"{self.url}/api/v1/query_range?{parameters}") as answer:
            result = json.load(answer)
        if result["status"] != "success":
            raise RuntimeError(f"{expression}: {result}")
        return result["data"]["result"]

    def series(self, panel):
        for target in panel["targets"]:
            for line in self.query(target["expr"]):
                legend = target["legendFormat"]
                for name, value in line["metric"].items():
                    legend = legend.replace("{{%s}}" % name, value)
                yield legend, [(float(t) - self.start, float(v)) for t, v in line["values"]]

    def stat(self, axes, panel):
        values = [points[-1][1] for _, points in self.series(panel) if points]
        if not values:
            raise RuntimeError(f"panel \"{panel['title']}\" has no data")
        defaults = panel["fieldConfig"]["defaults"]
        color = "green"
        for step in defaults["thresholds"]["steps"]:
            if step["value"] is None or values[-1] >= step["value"]:
                color = step["color"]
        axes.set_axis_off()
        axes.add_patch(FancyBboxPatch((0.01, 0.02), 0.98, 0.96, boxstyle="round,pad=0,rounding_size=0.02",
                                      transform=axes.transAxes, color=COLORS[color], alpha=0.85))
        axes.text(0.03, 0.88, panel["title"], transform=axes.transAxes, color="#0b0c0e", va="top", fontsize=9)
        axes.text(0.5, 0.4, number(values[-1], defaults["unit"]), transform=axes.transAxes, color="#0b0c0e",
                  ha="center", va="center", fontsize=22, weight="bold")

    def lines(self, axes, panel):
        defaults = panel["fieldConfig"]["defaults"]
        custom = defaults.get("custom", {})
        fixed = {o["matcher"]["options"]: COLORS[o["properties"][0]["value"]["fixedColor"]]
                 for o in panel["fieldConfig"]["overrides"]}
        series = sorted(self.series(panel))
        # a stack in the order in which the dashboard names its colours
        if fixed:
            order = list(fixed)
            series.sort(key=lambda s: order.index(s[0]) if s[0] in order else len(order))
        if not series:
            raise RuntimeError(f"panel \"{panel['title']}\" has no data")
        colors = [fixed.get(name, CYCLE[i % len(CYCLE)]) for i, (name, _) in enumerate(series)]
        if custom.get("stacking", {}).get("mode") == "normal":
            times = sorted({t for _, points in series for t, _ in points})
            columns = [[dict(points).get(t, 0.0) for t in times] for _, points in series]
            axes.stackplot(times, columns, labels=[name for name, _ in series], colors=colors, alpha=0.75, linewidth=0)
        else:
            style = "steps-post" if custom.get("lineInterpolation") == "stepAfter" else "default"
            for (name, points), color in zip(series, colors):
                axes.plot([t for t, _ in points], [v for _, v in points], label=name, color=color,
                          linewidth=1.4, drawstyle=style)
        self.dress(axes, panel, defaults)

    def dress(self, axes, panel, defaults):
        axes.set_facecolor(PANEL)
        axes.set_title(panel["title"], loc="left", color=TEXT, fontsize=10)
        axes.set_xlim(0, self.end - self.start)
        if defaults.get("min") == 0:
            axes.set_ylim(bottom=0)
            if axes.get_ylim()[1] <= 1:
                axes.set_ylim(top=max(axes.get_ylim()[1], 1e-3) if defaults["unit"] != "short" else 1.1)
        whole = defaults["unit"] == "short"
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=whole))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: number(v, defaults["unit"])))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{int(v) // 60}:{int(v) % 60:02d}"))
        axes.grid(color=GRID, linewidth=0.6)
        axes.tick_params(colors=TEXT, labelsize=8, length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        legend = axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncol=6, fontsize=8, frameon=False,
                             handlelength=1.2, columnspacing=1.2)
        for text in legend.get_texts():
            text.set_color(TEXT)

    def draw(self, out):
        panels = self.dashboard["panels"]
        height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels)
        figure = plt.figure(figsize=(16, height * 0.42), facecolor=BACKGROUND)
        figure.text(0.012, 0.992, self.dashboard["title"], color=TEXT, fontsize=15, weight="bold", va="top")
        for panel in panels:
            place = panel["gridPos"]
            stat = panel["type"] == "stat"
            left, right = (0.1, 0.1) if stat else (1.15, 0.2)
            top, bottom = (0.2, 0.1) if stat else (0.8, 1.25)
            scale_x, scale_y = 1 / 24, 0.97 / height
            axes = figure.add_axes([
                (place["x"] + left) * scale_x,
                0.97 - (place["y"] + place["h"] - bottom) * scale_y,
                (place["w"] - left - right) * scale_x,
                (place["h"] - top - bottom) * scale_y])
            (self.stat if stat else self.lines)(axes, panel)
        figure.savefig(out, dpi=80, facecolor=BACKGROUND)


def main():
    dashboard, url, start, end, step, out = sys.argv[1:]
    with open(dashboard, encoding="utf-8") as file:
        Picture(json.load(file), url, float(start), float(end), float(step)).draw(out)


main()
