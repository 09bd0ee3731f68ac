"""Line charts as SVG, with nothing but the standard library."""

import html
import math

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 70, 56, 50
COLOURS = ("#1f5fa8", "#b5472a")


def label(value):
    if value == round(value) and value < 1e5:
        return f"{value:.0f}"
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


class Axis:
    """Maps values to pixels: logarithmic where all are above zero and they span more than a factor of 8, else from zero."""

    def __init__(self, values, begin, end):
        low, high = min(values), max(values)
        self.log = low > 0 and high > 8 * low
        self.begin, self.end = begin, end
        if self.log:
            self.low, self.high = math.log2(low), math.log2(high)
            step = max(1, math.ceil((self.high - self.low) / 8))
            self.ticks = [2.0 ** e for e in range(math.floor(self.low), math.ceil(self.high) + 1, step)]
            self.low, self.high = math.floor(self.low), math.ceil(self.high)
        else:
            step = 10 ** math.floor(math.log10(high)) if high > 0 else 1
            step = next((s for s in (step / 5, step / 2, step, 2 * step) if high / s <= 8), 2 * step)
            self.low, self.high = 0, max(step, step * math.ceil(high / step - 1e-9))
            self.ticks = [step * i for i in range(round(self.high / step) + 1)]

    def at(self, value):
        position = math.log2(value) if self.log else value
        return self.begin + (self.end - self.begin) * (position - self.low) / (self.high - self.low)


def line_chart(title, x_name, xs, series):
    """series: one or two (name, values); the second has its own axis, on the right."""
    x_axis = Axis(xs, LEFT, WIDTH - RIGHT)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
           'font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{WIDTH / 2}" y="20" text-anchor="middle" font-size="15">{html.escape(title)}</text>',
           f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">{html.escape(x_name)}</text>']
    for tick in x_axis.ticks:
        x = x_axis.at(tick)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{label(tick)}</text>')
    for i, (name, values) in enumerate(series):
        axis = Axis(values, HEIGHT - BOTTOM, TOP)
        colour, left = COLOURS[i], i == 0
        edge = LEFT if left else WIDTH - RIGHT
        out.append(f'<line x1="{edge}" y1="{TOP}" x2="{edge}" y2="{HEIGHT - BOTTOM}" stroke="{colour}"/>')
        for tick in axis.ticks:
            x, anchor = (edge - 6, "end") if left else (edge + 6, "start")
            out.append(f'<text x="{x}" y="{axis.at(tick) + 4:.1f}" text-anchor="{anchor}" fill="{colour}">{label(tick)}</text>')
        x, anchor = (8, "start") if left else (WIDTH - 8, "end")
        out.append(f'<text x="{x}" y="{TOP - 12}" text-anchor="{anchor}" fill="{colour}">{html.escape(name)}</text>')
        points = [(x_axis.at(x), axis.at(y)) for x, y in zip(xs, values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return "\n".join(out) + "\n</svg>\n"
