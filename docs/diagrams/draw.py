"""Draw the diagrams of the documentation: ``python docs/diagrams/draw.py``.

It makes ``docs/images/NAME.svg`` from each ``NAME.txt`` of this folder. A line of a text is one shape. Places are in
units of 10 pixels, texts are quoted; ``#`` begins a comment:

    size 64 20                      the picture's width and height
    box NAME X Y W H "text" [COLOR] a box; ``|`` in its text begins a new line
    cells NAME X Y "3 1 4" "aab"    a row of cells, with one letter of color each
    text X Y "text" [left|bold]     text around this place
    arrow FROM TO ["text"]          FROM and TO are NAME.SIDE, sides are l r t b; a cell is NAME[N]

Colors are the letters a to e, and ``-`` for none. The same texts give the same bytes (tests/docs/test_diagrams.py).
"""

from __future__ import annotations

import re
import shlex
import sys
from html import escape
from pathlib import Path

UNIT, CELL = 10, 36
HERE = Path(__file__).parent
IMAGES = HERE.parent / "images"
STYLE = """
.ground{fill:#fff} .line{stroke:#5b6470;fill:none} .shape{stroke:#5b6470;stroke-width:1.2;fill:#f4f6f8}
text{fill:#1c2127}
.a{fill:#cfe3ff} .b{fill:#ffe1b8} .c{fill:#cdeed3} .d{fill:#f6d0dd} .e{fill:#e2d9fb}
@media (prefers-color-scheme: dark){
.ground{fill:#1a1d21} .line,.shape{stroke:#9aa4b0} .shape{fill:#262b31} text{fill:#e8ebee}
.a{fill:#1f4272} .b{fill:#6b4a14} .c{fill:#1f5630} .d{fill:#6a2a42} .e{fill:#463780}}
"""
Box = tuple[float, float, float, float]


class Drawing:
    """Shapes of one text, as SVG."""

    def __init__(self, text: str) -> None:
        self.boxes: dict[str, Box] = {}
        self.parts: list[str] = []
        self.width = self.height = 0.0
        for number, line in enumerate(text.splitlines(), 1):
            words = shlex.split(line, comments=True)
            if words:
                try:
                    getattr(self, words[0])(*words[1:])
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    raise ValueError(f"line {number}: {line!r}: {error}") from None

    def size(self, width: str, height: str) -> None:
        self.width, self.height = float(width) * UNIT, float(height) * UNIT

    def box(self, name: str, x: str, y: str, w: str, h: str, text: str, color: str = "-") -> None:
        self.rectangle(name, (float(x) * UNIT, float(y) * UNIT, float(w) * UNIT, float(h) * UNIT), text, color, 6)

    def cells(self, name: str, x: str, y: str, texts: str, colors: str) -> None:
        for number, (text, color) in enumerate(zip(texts.split(), colors, strict=True)):
            place = (float(x) * UNIT + number * CELL, float(y) * UNIT, CELL, 26)
            self.rectangle(f"{name}[{number}]", place, text, color, 0)

    def text(self, x: str, y: str, text: str, style: str = "") -> None:
        anchor = "start" if style == "left" else "middle"
        weight = ' font-weight="600"' if style == "bold" else ""
        self.write(float(x) * UNIT, float(y) * UNIT, text, anchor, weight)

    def arrow(self, start: str, end: str, text: str = "") -> None:
        (x, y), (to_x, to_y) = self.side(start), self.side(end)
        line = f'<line class="line" x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" marker-end="url(#head)"/>'
        self.parts.append(line)
        if text:
            upright = abs(to_x - x) < abs(to_y - y)
            beside = ((x + to_x) / 2 + 8, (y + to_y) / 2 + 4) if upright else ((x + to_x) / 2, (y + to_y) / 2 - 7)
            self.write(*beside, text, "start" if upright else "middle")

    def rectangle(self, name: str, box: Box, text: str, color: str, radius: int) -> None:
        x, y, w, h = self.boxes[name] = box
        kind = "shape" if color == "-" else f"shape {color}"
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius}"/>')
        lines = text.split("|")
        for number, line in enumerate(lines):
            self.write(x + w / 2, y + h / 2 + 4.5 + 17 * (number - (len(lines) - 1) / 2), line)

    def write(self, x: float, y: float, text: str, anchor: str = "middle", weight: str = "") -> None:
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}>{escape(text, quote=False)}</text>'
        )

    def side(self, name: str) -> tuple[float, float]:
        box, _, side = name.rpartition(".")
        x, y, w, h = self.boxes[box]
        return {"l": (x, y + h / 2), "r": (x + w, y + h / 2), "t": (x + w / 2, y), "b": (x + w / 2, y + h)}[side]

    def svg(self) -> str:
        head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}"'
                f' width="{self.width:g}" height="{self.height:g}" font-family="sans-serif" font-size="13">',
                f"<style>{STYLE}</style>",
                f'<defs>{head}<path class="line" d="M1,1 L7,4 L1,7"/></marker></defs>',
                f'<rect class="ground" width="{self.width:g}" height="{self.height:g}" rx="8"/>',
                *self.parts,
                "</svg>\n",
            ]
        )


def diagrams() -> dict[Path, str]:
    """Return each picture's path and what it must contain."""
    return {IMAGES / f"{path.stem}.svg": Drawing(path.read_text()).svg() for path in sorted(HERE.glob("*.txt"))}


def main() -> int:
    for path, svg in diagrams().items():
        path.write_text(svg)
        print(re.sub(".*/docs/", "docs/", str(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
