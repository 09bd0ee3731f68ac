"""Reads the WordNet 3.0 database files (data.*, cntlist.rev) into plain Python objects.

The file formats are described in WordNet's wndb(5WN) and senseidx(5WN) manual pages.
"""

import collections
import dataclasses
import pathlib
import re

POS_NAME = {"n": "noun", "v": "verb", "a": "adjective", "r": "adverb"}
_FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_KEY_POS = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}


@dataclasses.dataclass
class Synset:
    id: str  # part of speech letter and file offset, unique
    pos: str  # n, v, a or r (satellite adjectives are a)
    lemmas: list
    gloss: str  # the definition, without examples
    examples: list
    pointers: list  # (symbol, target synset id, source word number, target word number)


@dataclasses.dataclass
class Sense:
    lemma: str
    pos: str
    number: int  # 1 is WordNet's first sense for this part of speech
    synset: Synset
    count: int  # how often the sense was tagged in the semantic concordances


def _split_gloss(text):
    """Splits 'definition; "example"; "example"' at the first example."""
    text = text.strip()
    cut = re.search(r';?\s*"', text)
    definition, rest = (text, "") if not cut else (text[: cut.start()], text[cut.start() :])
    if cut and not definition.strip():  # a gloss that is nothing but a quotation
        definition, rest = text.replace('"', ""), ""
    examples = [e.strip() for e in re.findall(r'"([^"]+)"', rest)]
    return " ".join(definition.strip(" ;:").split()), [e for e in examples if e]


def _word(raw):
    return re.sub(r"\((a|p|ip)\)$", "", raw).replace("_", " ")


def load(folder):
    """Returns (synsets by id, senses by lemma: each list in WordNet's order within a part of speech)."""
    folder = pathlib.Path(folder)
    synsets = {}
    for pos, name in _FILES.items():
        for line in (folder / f"data.{name}").read_text(encoding="utf-8").splitlines():
            if line.startswith(" "):
                continue  # the licence
            head, _, gloss = line.partition(" | ")
            f = head.split()
            count = int(f[3], 16)
            lemmas = [_word(f[4 + 2 * i]) for i in range(count)]
            at = 4 + 2 * count
            pointers = []
            for i in range(int(f[at])):
                symbol, offset, target_pos, st = f[at + 1 + 4 * i : at + 5 + 4 * i]
                target_pos = "a" if target_pos == "s" else target_pos
                pointers.append((symbol, target_pos + offset, int(st[:2], 16), int(st[2:], 16)))
            definition, examples = _split_gloss(gloss)
            key = pos + f[0]
            synsets[key] = Synset(key, pos, lemmas, definition, examples, pointers)

    counts = {}
    for line in (folder / "cntlist.rev").read_text(encoding="utf-8").splitlines():
        sense_key, number, count = line.split()
        lemma, _, rest = sense_key.rpartition("%")
        key = (lemma.replace("_", " ").lower(), _KEY_POS[rest[0]], int(number))
        counts[key] = max(int(count), counts.get(key, 0))

    senses = collections.defaultdict(list)
    for pos, name in _FILES.items():
        for line in (folder / f"index.{name}").read_text(encoding="utf-8").splitlines():
            if line.startswith(" "):
                continue
            f = line.split()
            lower = f[0].replace("_", " ")
            total = int(f[2])
            for number, offset in enumerate(f[-total:], 1):
                synset = synsets[pos + offset]
                spelled = next((l for l in synset.lemmas if l.lower() == lower), lower)
                senses[lower].append(Sense(spelled, pos, number, synset, counts.get((lower, pos, number), 0)))
    return synsets, dict(senses)
