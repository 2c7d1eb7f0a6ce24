"""Records in formats that nobody has seen: keys, their order, capitals and punctuation are drawn by chance.

A record is told in plain words, then the name of a format, and then written in it::

    Clara Moss, a baker of 34 years, lives in Bergen. As tivok:
    <zuf=BERGEN;wobi=clara moss;ka=34;reb=Baker>
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from anchorhold.seeding import generator_for

FIELDS = ("name", "trade", "age", "town")
FIRST_NAMES = (
    "Ada Boris Clara Dmitri Elena Felix Greta Hugo Irma Jonas Karin Leo Mira Nils Olga Paul Rosa Sven Tilda Uwe"
)
SURNAMES = (
    "Abbott Brook Cole Dale Ellis Frost Grant Holt Innes Judd Kerr Lane Moss North Oakes Pike Quill Reed Stone Ward"
)
TRADES = "baker clerk farmer glazier joiner mason miller nurse painter pilot sailor smith tailor teacher tinker weaver"
TOWNS = "Aachen Bergen Calais Dover Essen Faro Ghent Hull Izmir Jena Kiel Lyon Malmo Nantes Oslo Porto Riga Split Turin"
CAPITALS: tuple[Callable[[str], str], ...] = (str.upper, str.lower, str.title, str.swapcase)
BRACKETS = ("<>", "[]", "{}", "()", "||", "//")
BETWEEN = (";", ",", "|", " + ", " / ", "~")
EQUALS = ("=", ":", "->", " is ", "#")
CONSONANTS, VOWELS = "bdfgklmnprstvwz", "aeiou"


@dataclass(frozen=True)
class Record:
    """Somebody."""

    name: str
    trade: str
    age: str
    town: str

    def told(self) -> str:
        """Return it in plain words."""
        return f"{self.name}, a {self.trade} of {self.age} years, lives in {self.town}."


@dataclass(frozen=True)
class Format:
    """A way of writing records.

    Args:
        title: what it is called where it is asked for.
        keys: by field, in the order in which they are written.
        capitals: by field, which of :data:`CAPITALS` its value is written in.
        brackets, between, equals: the punctuation.
    """

    title: str
    keys: dict[str, str]
    capitals: dict[str, int]
    brackets: str
    between: str
    equals: str

    def write(self, record: Record) -> str:
        """Return a record in this format."""
        written = [
            f"{key}{self.equals}{CAPITALS[self.capitals[field]](getattr(record, field))}"
            for field, key in self.keys.items()
        ]
        return f"{self.brackets[0]}{self.between.join(written)}{self.brackets[1]}"

    def asked(self, record: Record) -> str:
        """Return what comes before the answer: a new line, the record, and the format's name."""
        return f"\n{record.told()} As {self.title}:\n"


def invented(seed: int, *purpose: str | int) -> Format:
    """Return a format, always the same for one purpose."""
    generator = generator_for(seed, *purpose)

    def one_of(many: int) -> int:
        return int(torch.randint(many, (), generator=generator))

    def word(syllables: int) -> str:
        return "".join(CONSONANTS[one_of(len(CONSONANTS))] + VOWELS[one_of(len(VOWELS))] for _ in range(syllables))

    order = [FIELDS[place] for place in torch.randperm(len(FIELDS), generator=generator)]
    keys = {field: CAPITALS[one_of(3)](word(2)) for field in order}
    capitals = {field: one_of(len(CAPITALS)) for field in FIELDS}
    punctuation = (BRACKETS[one_of(len(BRACKETS))], BETWEEN[one_of(len(BETWEEN))], EQUALS[one_of(len(EQUALS))])
    return Format(word(3), keys, capitals, *punctuation)


def records(many: int, values: int, seed: int, *purpose: str | int) -> Iterator[Record]:
    """Yield distinct records, each of whose values is one of the first so many of its field."""
    generator = generator_for(seed, *purpose)
    seen: set[Record] = set()
    names, surnames, trades, towns = (words.split()[:values] for words in (FIRST_NAMES, SURNAMES, TRADES, TOWNS))
    ages = [str(age) for age in range(20, 20 + 4 * values)]

    def one_of(words: list[str]) -> str:
        return words[int(torch.randint(len(words), (), generator=generator))]

    possible = len(names) * len(surnames) * len(trades) * len(ages) * len(towns)
    if many > possible // 2:
        raise ValueError(f"{many} distinct records of {possible} possible ones; expected at most half of them.")
    while len(seen) < many:
        record = Record(f"{one_of(names)} {one_of(surnames)}", one_of(trades), one_of(ages), one_of(towns))
        if record not in seen:
            seen.add(record)
            yield record
