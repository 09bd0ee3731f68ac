"""Fetches the sources as Debian packages and writes the training text.

    python3 prepare_data.py --work DIR

Needs Debian 12 or a derivative of it with apt-get and dpkg (no root): the packages are downloaded and unpacked
under DIR, never installed. Writes DIR/train.jsonl, DIR/heldout_text.jsonl, DIR/heldout_gloss.jsonl,
DIR/common_words.json and DIR/licenses/ (each package's copyright file).
"""

import argparse
import glob
import html
import html.parser
import json
import pathlib
import random
import re
import shutil
import subprocess

import tasks

PACKAGES = ["wordnet-base", "bible-kjv", "bible-kjv-text", "postgresql-doc-15", "python3.11-doc", "scowl"]
BOOKS = 66
MAX_CHARS = 6000  # a piece of running text stays under the context length


def fetch(work):
    root = work / "root"
    if (root / "done").exists():
        return root
    debs = work / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *PACKAGES], cwd=debs, check=True)
    for deb in debs.glob("*.deb"):
        subprocess.run(["dpkg", "-x", deb, root], check=True)
    licenses = work / "licenses"
    licenses.mkdir(exist_ok=True)
    for name in PACKAGES:
        shutil.copy(root / "usr/share/doc" / name / "copyright", licenses / name)
    (root / "done").touch()
    return root


def scowl_levels(root):
    levels = {}
    for size in (10, 20, 35, 40, 50, 55, 60, 70, 80, 95):
        for kind in ("english-words", "american-words"):
            path = root / f"usr/share/dict/scowl/{kind}.{size}"
            if path.exists():
                for line in path.read_text(encoding="latin-1").splitlines():
                    levels.setdefault(line.strip().lower(), size)
    return levels


def bible(root):
    """The King James Version, one document a chapter."""
    out = subprocess.run([root / "usr/bin/bible", "-p", root / "usr/lib", "-l400", "Gen1:1-Rev22:21"],
                         check=True, capture_output=True, text=True).stdout
    chapters, current = [], []
    for line in out.splitlines():
        line = line.strip()
        if re.fullmatch(r"[1-3]? ?[A-Z][A-Za-z ]+ \d+", line):
            if current:
                chapters.append("\n".join(current))
            current = [line]
        elif line:
            current.append(line)
    chapters.append("\n".join(current))
    return chapters


def is_prose(paragraph):
    words = paragraph.split()
    letters = sum(c.isalpha() or c == " " for c in paragraph)
    return len(words) >= 8 and paragraph[-1] in ".:!?" and letters > 0.85 * len(paragraph)


def postgres(root):
    class Paragraphs(html.parser.HTMLParser):
        def __init__(self):
            super().__init__()
            self.depth, self.text, self.found = 0, [], []

        def handle_starttag(self, tag, attrs):
            if tag == "p":
                self.depth, self.text = 1, []

        def handle_endtag(self, tag):
            if tag == "p" and self.depth:
                self.depth = 0
                self.found.append(" ".join("".join(self.text).split()))

        def handle_data(self, data):
            if self.depth:
                self.text.append(data)

    for path in sorted(glob.glob(str(root / "usr/share/doc/postgresql-doc-15/html/*.html"))):
        if "release-" in path or "bookindex" in path:
            continue
        parser = Paragraphs()
        parser.feed(pathlib.Path(path).read_text(encoding="utf-8", errors="replace"))
        yield "\n\n".join(p for p in parser.found if p and is_prose(p))


def python_docs(root):
    role = re.compile(r":[a-zA-Z:+-]+:`(?:[^`<]*<)?[~!.]?([^`>]*)>?`")
    sources = root / "usr/share/doc/python3.11-doc/html/_sources"
    for path in sorted(glob.glob(str(sources / "**/*.rst.txt"), recursive=True)):
        if "/whatsnew/" in path or path.endswith("license.rst.txt"):
            continue
        text = pathlib.Path(path).read_text(encoding="utf-8")
        kept = []
        for block in re.split(r"\n\s*\n", text):
            block = " ".join(block.split())
            if block.startswith((".. ", "|", "+", "=", ">>>", "* ", "- ", "#")):
                continue
            block = role.sub(r"\1", block)
            block = re.sub(r"``([^`]*)``", r"\1", block)
            block = re.sub(r"`([^`<]*?)\s*(<[^`]*>)?`_*", r"\1", block)
            block = re.sub(r"\*+([^*]+)\*+", r"\1", block).replace("::", ":").replace("\\ ", "")
            if is_prose(block):
                kept.append(block)
        yield "\n\n".join(kept)


def pieces(document):
    """Cuts a document at line ends into pieces of at most MAX_CHARS characters."""
    piece, size = [], 0
    for line in document.split("\n"):
        if size + len(line) > MAX_CHARS and piece:
            yield "\n".join(piece).strip()
            piece, size = [], 0
        piece.append(line)
        size += len(line) + 1
    yield "\n".join(piece).strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    root = fetch(args.work)

    lexicon = tasks.Lexicon(root / "usr/share/wordnet", scowl_levels(root))
    print("words by tier:", tasks.count_by_tier(lexicon))
    writer = tasks.Writer(lexicon, args.seed)
    documents = list(writer.documents())

    held_text, sizes = [], {}
    for name, source in (("kjv", bible), ("postgresql", postgres), ("python", python_docs)):
        for number, document in enumerate(source(root)):
            for piece in pieces(document):
                if len(piece) < 200:
                    continue
                record = {"form": "text", "source": name, "parts": [[piece, 1]]}
                sizes[name] = sizes.get(name, 0) + len(piece)
                (held_text if tasks.share(f"{name}{number}") < 0.02 else documents).append(record)
    print("running text, characters:", sizes)

    random.Random(args.seed).shuffle(documents)
    for name, records in (("train", documents), ("heldout_text", held_text),
                          ("heldout_gloss", list(writer.held_out_documents()))):
        with open(args.work / f"{name}.jsonl", "w", encoding="utf-8") as out:
            for record in records:
                out.write(json.dumps(record, ensure_ascii=False) + "\n")
        print(f"{name}: {len(records)} documents, {sum(len(t) for r in records for t, _ in r['parts'])} characters")

    # The words that evaluate.py asks for: samples of the common and of the familiar words, with the right answers.
    words = {}
    for tier, label in ((tasks.COMMON, "common"), (tasks.FAMILIAR, "familiar")):
        pool = sorted((w for w in lexicon.senses if lexicon.tier[w] == tier and len(w) > 2
                       and not lexicon.held_out(lexicon.first(w).synset.id)), key=lambda w: tasks.share("eval" + w))
        words[label] = [{"word": lexicon.word(w), "gloss": lexicon.first(w).synset.gloss,
                         "plain": lexicon.define_plain(w), "chat": lexicon.define_chat(w)} for w in pool[:200]]
    synonyms = [w for w in lexicon.senses if lexicon.tier[w] == tasks.COMMON and lexicon.synonyms(w)]
    synonyms.sort(key=lambda w: tasks.share("pair" + w))
    words["synonym_pairs"] = [[lexicon.word(w), lexicon.common_lemmas(lexicon.first(w).synset, {w}, 1)[0]]
                              for w in synonyms[:500]]
    (args.work / "common_words.json").write_text(json.dumps(words, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
