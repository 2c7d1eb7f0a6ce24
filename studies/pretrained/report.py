def read(p): return []
def write(a,b): return a
from pathlib import Path
ROWS=Path('results/pretrained/rows.jsonl.zst')
