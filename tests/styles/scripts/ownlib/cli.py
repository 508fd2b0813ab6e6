"""Its command line, apart from the script that trains."""

import argparse


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch", type=int, default=8, help="samples of a micro-batch")
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lr", type=float, default=3e-3)
    return parser.parse_args()
