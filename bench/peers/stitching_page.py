"""Puts the tables of bench/stitching.sh into a page, between its marks.

    stitching_page.py FOLDER PAGE

A table NAME.md of FOLDER takes the place of what stands between `<!-- begin NAME` and `<!-- end NAME` of PAGE, for each of them.
"""
import os
import re
import sys


def main():
    folder, page = sys.argv[1:]
    text = open(page).read()
    for name in re.findall(r"<!-- begin (\w+)", text):
        file = f"{folder}/{name}.md"
        if not os.path.exists(file):
            print(f"{name}: there is no {file}", file=sys.stderr)
            continue
        marks = re.compile(rf"(<!-- begin {name}[^>]*-->\n).*?(<!-- end {name} -->)", re.S)
        text = marks.sub(lambda found: found[1] + open(file).read() + found[2], text)
    open(page, "w").write(text)


if __name__ == "__main__":
    main()
