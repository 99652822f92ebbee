"""Hypothesis keeps what it finds in the code in the folder of temporary files, not in the checkout."""

import getpass
import tempfile
from pathlib import Path

from hypothesis.configuration import set_hypothesis_home_dir

# When it is loaded, as hypothesis writes before the first fixture and after the last.
set_hypothesis_home_dir(Path(tempfile.gettempdir()) / f"commlib-hypothesis-{getpass.getuser()}")
