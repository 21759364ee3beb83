"""Makes the small oracle folder that the tests use: python3 make_testdata.py DIR [SEED]. Needs NumPy.

The layout is that of every oracle folder; shapes, names, lengths and hyperparameters are this script's own. The same seed
gives the same files with the same NumPy.
"""

import sys

import adamw
import formats
import gpt
import kernels
import quantize
import scaling


def main():
    folder, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7
    for module in (formats, scaling, adamw, kernels, quantize, gpt):
        module.write(f"{folder}/{module.__name__}", seed)


if __name__ == "__main__":
    main()
