"""The text: two pairs of an old and a new kind, as bytes, made from Debian packages.

None of the four kinds was old or new where the exchange rate was found.
"""

import json
from pathlib import Path

import numpy as np
import torch

from anchorhold.whole_files import write_whole
from benchmarks.language.corpus import Corpus, part_of, write
from studies.pretrained.texts import TEXTS, number_of

KINDS = {
    "dictionary": ("lesson-dictionary", "the dictionary GCIDE (GPL-3+)"),
    "c": ("c", "C files of kernel modules: LTTng, DAHDI, OpenAFS (GPL-2, LGPL-2.1, IPL-1.0)"),
    "german": ("lesson-german", "LibreOffice's help, German (MPL-2.0)"),
    "scripture": ("scripture", "the World English Bible (public domain)"),
}
"""Each kind of text: the name that the study of pretrained models has for its documents, and where they come from."""
PAIRS = {"dictionary, C": ("dictionary", "c"), "German, scripture": ("german", "scripture")}
"""What is learned first, and what then."""
AT_MOST = 8_000_000
"""Bytes of a kind."""
ONE_IN = 12
"""One piece of a document in so many is kept apart to measure losses on."""
PIECE = 16_000
"""Characters of a piece: the books of a scripture are few, and of different lengths."""


def prepare(cache: Path) -> Path:
    """Write the corpus and a listing of its parts beside it, and return the corpus's path.

    Args:
        cache: the folder of the study of pretrained models, where packages lie; what is not there is downloaded.
    """
    texts: dict[tuple[str, str], torch.Tensor] = {}
    listing: dict[str, object] = {}
    for kind, (name, about) in KINDS.items():
        parts: dict[str, list[bytes]] = {"train": [], "validation": []}
        total = 0
        found = sorted(TEXTS[name].documents(cache), key=lambda document: number_of(document[0]))
        for document, content in found:
            for start in range(0, len(content), PIECE):
                piece = content[start : start + PIECE].encode()
                if total + len(piece) <= AT_MOST:
                    parts[part_of(f"{document}/{start}", ONE_IN)].append(piece)
                    total += len(piece)
        for part, pieces in parts.items():
            texts[kind, part] = torch.from_numpy(np.frombuffer(b"\n\n\n".join(pieces), dtype=np.uint8).copy())
        sizes = {part: len(texts[kind, part]) for part in parts}
        listing[kind] = {"about": about, "bytes": sizes}
        print(kind, listing[kind], flush=True)
    corpus = Corpus(texts)
    path = cache / "exchange-rate.npz"
    write(path, corpus)
    content = json.dumps({"sha256": corpus.digest(), "texts": listing}, indent=2, ensure_ascii=False) + "\n"
    write_whole(path.with_suffix(".json"), content.encode())
    print(f"{path}: {path.stat().st_size} bytes, sha256 of the text {corpus.digest()}", flush=True)
    return path
