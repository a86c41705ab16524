"""Writes digits.csv: 500 gray images of digits, 8 by 8 pixels, drawn from the glyphs below.

    python make_digits.py > digits.csv

Each line has 65 integers: the digit, then its pixels from 0 to 16, row by row. A glyph is moved by fractions of a pixel,
slanted, drawn darker or lighter, and covered with noise. The digits 0 to 9 take turns.
"""
import random

GLYPHS = """
.###. ..#.. .###. .###. ...#. ##### .###. ##### .###. .###.
#...# .##.. #...# #...# ..##. #.... #.... ....# #...# #...#
#...# ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...#
#...# ..#.. ...#. ..##. #..#. ....# ####. ..#.. .###. .####
#...# ..#.. ..#.. ....# ##### ....# #...# ..#.. #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# .#... #...# ....#
.###. .###. ##### .###. ...#. .###. .###. .#... .###. .###.
"""
ROWS = [line.split() for line in GLYPHS.split("\n") if line]


def ink(digit, x, y):
    """How dark a glyph is at a point, between the centers of its pixels too."""
    left, top = int(x // 1), int(y // 1)
    total = 0.0
    for row, column in [(top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)]:
        if 0 <= row < 7 and 0 <= column < 5 and ROWS[row][digit][column] == "#":
            total += (1 - abs(x - column)) * (1 - abs(y - row))
    return total


def image(digit, draw):
    right, down = draw.uniform(0.3, 2.7), draw.uniform(-0.2, 1.2)
    slant, dark = draw.uniform(-0.2, 0.2), draw.uniform(0.7, 1.1)
    for y in range(8):
        for x in range(8):
            value = dark * ink(digit, x - right + slant * (y - 3.5), y - down) + draw.uniform(-0.12, 0.12)
            yield round(16 * min(max(value, 0.0), 1.0))


draw = random.Random(1)
for number in range(500):
    print(number % 10, *image(number % 10, draw), sep=",")
