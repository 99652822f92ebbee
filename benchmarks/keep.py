"""Keep results: documents of any command in one file, a short line for a row; `--show` writes them out again.

python benchmarks/keep.py two.json four.json -o benchmarks/results/bench_h200.json
python benchmarks/keep.py --show benchmarks/results/profile_h200.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from written import command_line

from commlib.tools.report import files
from commlib.tools.report.formats import json_text
from commlib.tools.report.packed import packed, unpacked


def main() -> int:
    """Read all files; write one, or print what is in them."""
    parser = command_line(__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--show", action="store_true", help="print every document as the command wrote it")
    options = parser.parse_args()
    documents = [part for path in options.files for part in unpacked(json.loads(path.read_text(encoding="utf-8")))]
    if options.show or options.output is None:
        print("\n".join(json_text(document) for document in documents))
    else:
        files.write(options.output, packed(documents))
    return 0


if __name__ == "__main__":
    sys.exit(main())
