"""Each drop-in module beside its original. A row is a file ``row_DOOR_WORKLOAD.py`` with a ROW; all
that lie here are run.
"""

from pathlib import Path

ROWS = tuple(sorted(path.stem for path in Path(__file__).parent.glob("row_*.py")))
