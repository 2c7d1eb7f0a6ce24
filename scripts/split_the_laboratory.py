"""Move the laboratory out of the library, and the paper's reproduction out of both: once, from the repository's root.

The laboratory becomes the distribution anchorhold-lab, the package anchorhold_lab under lab/; the reproduction becomes
the program studies.benzing2020. Only places and names change here; what needs thought is done by hand afterwards.
"""

import re
import subprocess
from pathlib import Path

MOVES = {
    "src/anchorhold/lab/paper": "studies/benzing2020",
    "src/anchorhold/lab/cli/commands/making_runs/reproduce.py": "studies/benzing2020/command.py",
    "src/anchorhold/lab/cli/commands/making_runs/reproduce_report.py": "studies/benzing2020/command_report.py",
    "src/anchorhold/lab/cli/commands/merge.py": "src/anchorhold/command_line.py",
    "src/anchorhold/lab/data/digits.npz": "src/anchorhold/digits.npz",
    "src/anchorhold/lab": "lab/src/anchorhold_lab",
    "src/anchorhold/__main__.py": "lab/src/anchorhold_lab/__main__.py",
    "tests/lab/paper": "tests/studies/benzing2020",
    "tests/lab/cli/test_reproduce.py": "tests/studies/benzing2020/test_command.py",
    "tests/lab/cli/test_merge.py": "tests/test_command_line.py",
}
WORDS = [
    (r"anchorhold\.lab\.cli\.commands\.making_runs\.reproduce_report", "studies.benzing2020.command_report"),
    (r"anchorhold\.lab\.cli\.commands\.making_runs\.reproduce\b", "studies.benzing2020.command"),
    (r"anchorhold\.lab\.paper", "studies.benzing2020"),
    (r"anchorhold\.lab\b", "anchorhold_lab"),
    (r"(src/)?anchorhold/lab/paper", "studies/benzing2020"),
    (r"src/anchorhold/lab\b", "lab/src/anchorhold_lab"),
    (r"anchorhold/lab\b", "anchorhold_lab"),
    (r"tests/lab/paper", "tests/studies/benzing2020"),
    (r"tests\.lab\.paper", "tests.studies.benzing2020"),
    (r"anchorhold reproduce\b", "python -m studies.benzing2020"),
    (r"\banchorhold (run|runs|search|data|measures)\b", r"anchorhold-lab \1"),
    (r"-m anchorhold reproduce\b", "-m studies.benzing2020"),
    (r"-m anchorhold (run|runs|search|data|measures)\b", r"-m anchorhold_lab \1"),
    (r"anchorhold\[(cli|report|experiments)\]", "anchorhold-lab"),
    (r"anchorhold\[(cli,)?(tensorboard|ray)\]", r"anchorhold-lab[\2]"),
    (r"anchorhold\[cli,report\]", "anchorhold-lab"),
]
UNTOUCHED = ("results/", "scripts/", "CHANGELOG.md")


def main() -> None:
    """Move files, then rewrite what names their places."""
    for old, new in MOVES.items():
        Path(new).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", old, new], check=True)
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if name.startswith(UNTOUCHED) or Path(name).suffix not in {
            ".py",
            ".md",
            ".toml",
            ".html",
            ".css",
            ".ipynb",
            "",
        }:
            continue
        old = Path(name).read_bytes().decode("utf-8")
        text = old
        for pattern, word in WORDS:
            text = re.sub(pattern, word, text)
        if text != old:
            Path(name).write_bytes(text.encode("utf-8"))


if __name__ == "__main__":
    main()
