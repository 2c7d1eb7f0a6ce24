"""Rename the library from holdfast to anchorhold, and its class Consolidator to Guard: once, from the repository's root.

Every tracked text file is rewritten, and every path that carries the old name is moved. Two things keep the old name:
published runs, whose bits are their proof, and the keys under which files of version 0.1.0 store what they hold.
"""

import re
import subprocess
from pathlib import Path

# Written and read under the old name: the format's name, not the library's.
FORMATS = {
    "src/holdfast/guard/saving/state_files.py": ['_KEY = "holdfast"'],
    "src/holdfast/retention/kept_files.py": ['_KEY = "holdfast_kept"'],
    "src/holdfast/holds/of_batches/buffers.py": ['_KEY = "holdfast_buffer"'],
    "src/holdfast/integrations/huggingface_checkpoints.py": ['_MARK = "holdfast"', '_WEIGHTS = "holdfast_weights"'],
    "src/holdfast/integrations/callbacks.py": ['_TASK_FREE = "holdfast_task_free"'],
    "tests/guard/saving/test_saved_before.py": ['.metadata()["holdfast"]'],
    "tests/guard/saving/test_damaged_files.py": [
        '.metadata()["holdfast"]',
        '{"holdfast": json.dumps',
        '{"holdfast": text}',
    ],
    "tests/guard/saving/test_state.py": ['.metadata()["holdfast"]', '{"holdfast": json.dumps'],
    "tests/integrations/test_hub.py": ['.metadata()["holdfast"]'],
    "tests/holds/of_batches/test_buffers.py": ['"holdfast_buffer"'],
}
PUBLISHED = ("results/paper/store/",)
RENDERED = {".html"}  # made again from the store
BINARY = {".png", ".npz", ".safetensors", ".gz", ".pt", ".svg", ".pdf", ".pickle", ".bin"}
WORDS = [
    ("HOLDFAST", "ANCHORHOLD"),
    ("Holdfast", "Anchorhold"),
    ("holdfast", "anchorhold"),
    (r"\bConsolidator\b", "Guard"),
    (r"\bConsolidators\b", "Guards"),
    (r"\bconsolidator\b", "guard"),
    (r"\bconsolidators\b", "guards"),
    ("test_a_second_consolidator", "test_a_second_guard"),
    ("test_consolidator", "test_guard"),
]


def main() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if name.startswith(PUBLISHED) or name == "scripts/rename_to_anchorhold.py":
            continue
        path = Path(name)
        if path.suffix not in BINARY | RENDERED:
            rewrite(path, FORMATS.get(name, []))
        moved = Path(renamed(name))
        if moved != path:
            moved.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "mv", name, str(moved)], check=True)


def rewrite(path: Path, formats: list[str]) -> None:
    old = path.read_bytes().decode("utf-8")
    text = old
    for number, kept in enumerate(formats):
        if kept not in text:
            raise SystemExit(f"{path} does not hold {kept!r} any more.")
        text = text.replace(kept, f"\0{number}\0")
    text = renamed(text)
    for number, kept in enumerate(formats):
        text = text.replace(f"\0{number}\0", kept)
    if text != old:
        path.write_bytes(text.encode("utf-8"))


def renamed(text: str) -> str:
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    return text


if __name__ == "__main__":
    main()
