#!/usr/bin/env python3
"""Makes the golden vectors of the tokenizer tests with the `tokenizers` library, which defines the format.

Trains one small tokenizer for each family of pre-tokenizer and writes, beside this file,

  texts.bin               the texts, shared by all families: varint byte length, bytes
  FAMILY/tokenizer.json   the tokenizer as the library wrote it, or
  FAMILY/tokenizer.model  as the sentencepiece library did, which then defines what is right
  FAMILY/encode.bin       vectors: varint text index, mode byte, varint count, varint ids
  FAMILY/decode.bin       vectors: skip-special byte, varint count, varint ids, varint byte length, bytes

Modes: bit 0: the spelling of special tokens is parsed; bit 1: special tokens are added around the text.

  python3 make_vectors.py [--out DIR] [--seed N] [--texts N] [--corpus-dir DIR] [--tokenizer NAME=FILE ...]

The corpus is the source text of CPython's standard library (PSF License 2.0), of which short excerpts are among the
texts; --tokenizer adds vectors for a tokenizer that is stored elsewhere (its tokenizer.json is not copied). The
stored files are those of the following, but for the order in which the trainer of the SentencePiece-like families
happens to take equal frequencies:

  python3 make_vectors.py --tokenizer bundled=../../../deploy/model/tokenizer.json

A longer run, for `TESSERA_TOKENIZER_VECTORS=/tmp/vectors tokenizer_golden_test`:

  python3 make_vectors.py --out /tmp/vectors --seed 2 --texts 80000
"""

import argparse
import io
import json
import pathlib
import random
import re
import sys
import unicodedata

import sentencepiece as spm
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
META = "\u2581"

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def special(content, **flags):
    return AddedToken(content, special=True, normalized=flags.pop("normalized", False), **flags)


def ordinary(content, **flags):
    return AddedToken(content, special=False, normalized=flags.pop("normalized", False), **flags)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
CHAT = [special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>"), ordinary("<think>"), ordinary("</think>")]


def byte_level(pre, added=CHAT, normalizer=None, vocab=900, **model):
    t = Tokenizer(models.BPE(**model))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, max_token_length=16
    )
    return t, trainer, added


def sentencepiece(normalizer=None, pre=None, decoder=None, added=(), vocab=1200, **model):
    """SentencePiece-like: characters and spaces as U+2581, bytes for what the vocabulary lacks."""
    t = Tokenizer(models.BPE(unk_token="<unk>", **model))
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement=META, prepend_scheme="always")
    names = ["<unk>", "<s>", "</s>"]
    if model.get("byte_fallback"):
        names += [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=names, show_progress=False, limit_alphabet=400, max_token_length=16
    )

    def finish(trained):
        # The trainer marks every one of its special tokens as an added token; bytes are not.
        data = json.loads(trained.to_str())
        data["added_tokens"] = [a for a in data["added_tokens"] if a["id"] < 3]
        done = Tokenizer.from_str(json.dumps(data))
        if normalizer:
            done.normalizer = normalizer
        data = json.loads(done.to_str())
        data["pre_tokenizer"] = json.loads(pre.__getstate__()) if pre else None
        done = Tokenizer.from_str(json.dumps(data))
        done.decoder = decoder
        done.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        return done

    return t, trainer, list(added), finish


FUSED = decoders.Sequence([decoders.Replace(META, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def families(charsmap=b""):
    yield "qwen", byte_level(pre_tokenizers.Sequence([split(QWEN), BYTES]), normalizer=normalizers.NFC())
    yield "llama3", byte_level(
        pre_tokenizers.Sequence([split(LLAMA3), BYTES]),
        added=[special("<|begin_of_text|>"), special("<|eot_id|>")] + CHAT[1:],
        ignore_merges=True,
    )
    yield "gpt2", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    yield "gpt2_prefix", byte_level(
        pre_tokenizers.ByteLevel(add_prefix_space=True), vocab=600, added=[special("<s>"), special("</s>"), special("<mask>", lstrip=True)]
    )
    yield "smollm", byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    )
    yield "deepseek", byte_level(
        pre_tokenizers.Sequence([split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK), BYTES]),
        added=[special("<｜begin▁of▁sentence｜>"), special("<｜User｜>"), ordinary("<think>"), ordinary("  ", normalized=True)],
    )
    yield "o200k", byte_level(pre_tokenizers.Sequence([split(O200K), BYTES]))
    yield "flags", byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.Punctuation("merged_with_previous"), split(r"\s+", "merged_with_next"), BYTES]),
        normalizer=normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]),
        vocab=600,
        added=[
            special("<|im_start|>", lstrip=True, rstrip=True),
            special("<|im_end|>", rstrip=True),
            special("<|endoftext|>", single_word=True),
            ordinary("<think>", normalized=True, lstrip=True),
            ordinary("word", normalized=True, single_word=True),
            ordinary("wor"),
        ],
    )
    yield "removed", byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(), split(r"[A-Z]", "contiguous"), split(r"e", "removed"), BYTES]),
        normalizer=normalizers.Sequence([normalizers.Replace(Regex(r"\d{4,}"), "#"), normalizers.Replace("the", "THE"), normalizers.Strip()]),
        vocab=600,
    )
    yield "words", byte_level(pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), split(r"\w+|\b[^\w]", "removed", True), BYTES]), vocab=600)
    yield "llama2", sentencepiece(
        normalizer=normalizers.Sequence([normalizers.Prepend(META), normalizers.Replace(" ", META)]),
        decoder=FUSED,
        byte_fallback=True,
        fuse_unk=True,
    )
    yield "mistral", sentencepiece(
        pre=pre_tokenizers.Metaspace(replacement=META, prepend_scheme="first", split=False),
        decoder=FUSED,
        added=[special("[INST]"), special("[/INST]"), special("<|im_start|>", lstrip=True), ordinary("<think>", rstrip=True)],
        byte_fallback=True,
        fuse_unk=True,
    )
    yield "metaspace", sentencepiece(
        pre=pre_tokenizers.Metaspace(replacement=META, prepend_scheme="always"),
        decoder=decoders.Metaspace(replacement=META, prepend_scheme="always"),
        vocab=900,
        fuse_unk=False,
    )
    yield "unigram", unigram(
        normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " ")]), False, "always"
    )
    yield "unigram_bytes", unigram(normalizers.NFKC(), True, "first", vocab=1100)


# Rules like those of SentencePiece's nmt_nfkc, which has 240 KB of them: code points, tab, code points.
CHARSMAP_RULES = """
9 20
A 20
A0 20
3000 20
200B
FEFF
2F 7E
2126 3A9
212B C5
41 30A C5
65 301 E9
FB01 66 69
FF21 41
FF41 61
FF11 31
2026 2E 2E 2E
BD 31 2044 32
1100 1161 AC00
AC00 11A8 AC01
"""
SPM_SYMBOLS = ["<think>", "</think>", META * 2, "the", "\n"]


def spm_train(corpus, model_type, rules=False, **options):
    """A SentencePiece model; returns the file's content."""
    writer = io.BytesIO()
    options = {"vocab_size": 1000, "character_coverage": 0.999, **options}
    if rules:
        tsv = HERE / "rules.tsv"
        lines = (l.split() for l in CHARSMAP_RULES.strip().splitlines())
        sources = {"41 30A": 2, "65 301": 2, "1100 1161": 2, "AC00 11A8": 2}
        with open(tsv, "w") as f:
            for l in lines:
                n = sources.get(" ".join(l[:2]), 1)
                f.write(" ".join(l[:n]) + "\t" + " ".join(l[n:]) + "\n")
        options["normalization_rule_tsv"] = str(tsv)
    else:
        options.setdefault("normalization_rule_name", "identity")
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=writer, model_type=model_type, minloglevel=2, num_threads=1,
        max_sentence_length=2000, **options,
    )
    if rules:
        tsv.unlink()
    return writer.getvalue()


def few_characters(corpus):
    """The lines that leave room for pieces of several characters in a small vocabulary."""
    return [l for l in corpus if l.strip() and "<0x" not in l and all(c < "\u0180" or "\u3041" <= c < "\u3100" for c in l)]


def spm_families(corpus):
    """(name, content of tokenizer.model, tokenizer_config.json)"""
    lines = few_characters(corpus)
    yield "spm_bpe", spm_train(
        lines, "bpe", byte_fallback=True, remove_extra_whitespaces=False, user_defined_symbols=SPM_SYMBOLS, allow_whitespace_only_pieces=True
    ), {}
    yield "spm_bpe_rules", spm_train(lines, "bpe", rules=True, split_digits=True), {"add_bos_token": False, "add_eos_token": True}
    yield "spm_unigram", spm_train(lines, "unigram", rules=True, user_defined_symbols=SPM_SYMBOLS), {}
    yield "spm_unigram_bytes", spm_train(
        lines, "unigram", byte_fallback=True, add_dummy_prefix=False, remove_extra_whitespaces=False, split_by_whitespace=False
    ), {}


def charsmap_of(model):
    """The precompiled charsmap in a SentencePiece file, found as a field of the wire format."""

    def fields(data):
        pos = 0

        def number():
            nonlocal pos
            value = shift = 0
            while True:
                b = data[pos]
                pos += 1
                value |= (b & 0x7F) << shift
                shift += 7
                if b < 0x80:
                    return value

        while pos < len(data):
            key = number()
            if key & 7 == 2:
                n = number()
                yield key >> 3, data[pos : pos + n]
                pos += n
            elif key & 7 == 5:
                pos += 4
            else:
                number()

    normalizer = next(v for k, v in fields(model) if k == 3)
    return next(v for k, v in fields(normalizer) if k == 2)


def unigram(normalizer, byte_fallback, scheme, vocab=900):
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement=META, prepend_scheme=scheme)
    names = ["<unk>", "<s>", "</s>"] + ([f"<0x{b:02X}>" for b in range(256)] if byte_fallback else [])
    trainer = trainers.UnigramTrainer(vocab_size=vocab, special_tokens=names, unk_token="<unk>", show_progress=False, max_piece_length=12)

    def finish(trained):
        data = json.loads(trained.to_str())
        data["added_tokens"] = [a for a in data["added_tokens"] if a["id"] < 3]
        data["model"]["byte_fallback"] = byte_fallback
        done = Tokenizer.from_str(json.dumps(data))
        if byte_fallback:
            done.decoder = FUSED
        else:
            done.decoder = decoders.Metaspace(replacement=META, prepend_scheme=scheme)
        done.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
        return done

    return t, trainer, [special("[INST]"), ordinary("<think>", rstrip=True)], finish


ASSIGNED = [chr(c) for c in range(0x20, 0x110000) if unicodedata.category(chr(c)) not in ("Cs", "Cn", "Co")]
NEW = [chr(c) for r in ((0x1C89, 0x1C8B), (0xA7CB, 0xA7CE), (0x10D40, 0x10D86), (0x31350, 0x31360), (0x1E4D0, 0x1E4FA)) for c in range(*r)]
SCRIPTS = {
    "latin": [chr(c) for c in range(0x41, 0x250) if chr(c).isalpha()],
    "greek": [chr(c) for c in range(0x370, 0x400) if chr(c).isalpha()],
    "cyrillic": [chr(c) for c in range(0x400, 0x500) if chr(c).isalpha()],
    "hebrew": [chr(c) for c in range(0x5D0, 0x5EB)],
    "arabic": [chr(c) for c in range(0x620, 0x660)],
    "devanagari": [chr(c) for c in range(0x900, 0x980)],
    "thai": [chr(c) for c in range(0xE01, 0xE5C) if chr(c).isprintable()],
    "hangul": [chr(c) for c in range(0xAC00, 0xAC80)] + [chr(c) for c in range(0x1100, 0x1113)] + [chr(c) for c in range(0x1161, 0x1176)] + [chr(c) for c in range(0x11A8, 0x11C3)],
    "kana": [chr(c) for c in range(0x3041, 0x30FF)],
    "han": [chr(c) for c in range(0x4E00, 0x4F00)] + [chr(c) for c in range(0x20000, 0x20020)],
}
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0", "\u1680", "\u180e", "\u2003", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff"]
MARKS = [chr(c) for c in range(0x300, 0x370)] + ["\u0591", "\u064b", "\u093c", "\u3099", "\u20dd", "\u0344", "\u0f71", "\u0f72", "\u302a"]
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "1️⃣", "❤️‍🔥", "👩🏾‍🚀", "©", "™", "🤷🏻‍♂️", "🫠"]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<s>", "</s>", "<mask>", "[INST]", "[/INST]", "<|begin_of_text|>", "<|eot_id|>", "<unk>", "<0x41>", "<｜begin▁of▁sentence｜>", "<|im_", "Word", "word", "wor", "<THINK>", META]
CONTRACTIONS = ["'s", "'S", "'t", "'re", "'VE", "'m", "'ll", "'LL", "'d", "'D", "\u2019s", "'\u017f", "''", "'", "'x"]
CODE = ["def f(x):\n    return x**2\n", "\tif (a != b) { c[i]++; }\n", "std::vector<int> v{1, 2, 3};", "https://example.org/a?b=c&d=%20", "SELECT * FROM t WHERE id IN (1,22,333,4444);", "{\"key\": [null, true, 1.5e-3]}", "x = {'a': 1}\r\n\r\n\r\n", "0xDEADBEEF", "1234567890", "٣٤٥", "²³½Ⅷ", "camelCaseHTTPServer", "snake_case_name", "-- --- ....", "####", "a//b\n/c"]


def make_texts(corpus, rng, count):
    def words(n):
        start = rng.randrange(len(corpus) - 400)
        return corpus[start : start + n]

    def from_script():
        letters = SCRIPTS[rng.choice(list(SCRIPTS))]
        return "".join(rng.choice(letters) for _ in range(rng.randint(1, 10)))

    def marks():
        return "".join(rng.choice(SCRIPTS["latin"]) + "".join(rng.choices(MARKS, k=rng.randint(0, 4))) for _ in range(rng.randint(1, 5)))

    parts = [
        lambda: words(rng.randint(1, 40)),
        from_script,
        marks,
        lambda: rng.choice(EMOJI) * rng.randint(1, 2),
        lambda: "".join(rng.choices(SPACES, k=rng.randint(1, 5))),
        lambda: rng.choice(TOKENS),
        lambda: rng.choice(CODE),
        lambda: rng.choice(["I", "they", "WE", "é", ""]) + rng.choice(CONTRACTIONS),
        lambda: "".join(rng.choices(ASSIGNED, k=rng.randint(1, 6))),
        lambda: rng.choice(NEW),
        lambda: "".join(rng.choices("aA1 .\n'", k=rng.randint(1, 12))),
        lambda: str(rng.randrange(10 ** rng.randint(1, 9))),
    ]
    texts = ["", " ", "  ", "a", "\n", "Hello, world!", " Hello", "Hello ", META, META + "a", "<s>", "\x00", "\x7f", "é", "e\u0301", "가", "\u1100\u1161\u11a8", "\u212b", "\u0344", "\u0958"]
    texts += TOKENS + CODE + EMOJI + SPACES
    texts += [a + b for a in ("<|im_end|>", "x<|endoftext|>", " <think> ") for b in ("", "y", " y", "\ny")]
    texts += [words(300) for _ in range(24)]
    texts += [c * n for c in ("a", " ", "\n", ".", "1", "é", "中", "😀", "ab", " a", "\t", "A") for n in (2, 3, 31, 40, 41, 42, 200)]
    while len(texts) < count:
        texts.append("".join(rng.choice(parts)() for _ in range(rng.randint(1, 7))))
    return texts


def varint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def ids_bytes(ids):
    return varint(len(ids)) + b"".join(map(varint, ids))


def same_unicode(text):
    """No letter of a later Unicode version than this Python's, whose case the library knows, and no character that
    was or became a mark since the earlier version that the library's StripAccents goes by."""
    strip = normalizers.StripAccents()
    categories = [unicodedata.category(c) for c in text]
    return "Cn" not in categories and all((k[0] == "M") == (not strip.normalize_str(c)) for c, k in zip(text, categories))


def comparable(tokenizer, text, mode, named, family):
    """Whether the library's ids are what is wanted. `family`: its tokenizer.json."""
    if "Lowercase" in family and not same_unicode(text):
        return False
    if mode == 3 and any(text.startswith(s) for s in named):
        return False  # a spelled-out BOS is not doubled here, other than in the library
    # The library's unigram models find special tokens in any text, asked to or not.
    return mode & 1 or '"Unigram"' not in family or not any(s in tokenizer.normalizer.normalize_str(text) for s in named)


def encode_vectors(tokenizer, texts, named):
    out = bytearray()
    count = 0
    family = tokenizer.to_str()
    for mode in range(4):
        tokenizer.encode_special_tokens = not mode & 1
        for i, text in enumerate(texts):
            if not comparable(tokenizer, text, mode, named, family):
                continue
            # The other modes differ from the first only where a special token is spelled out.
            if mode not in (1, 2) and not any(s in text for s in named):
                continue
            if mode == 2 and i % 8 != 0:
                continue
            ids = tokenizer.encode(text, add_special_tokens=bool(mode & 2)).ids
            out += varint(i) + bytes([mode]) + ids_bytes(ids)
            count += 1
    tokenizer.encode_special_tokens = False
    return out, count


def decode_vectors(tokenizer, texts, rng):
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    byte_tokens = {tokenizer.token_to_id(f"<0x{b:02X}>") for b in range(256)}
    if None in byte_tokens:
        byte_tokens = set()
    plain = [i for i in range(size) if i not in byte_tokens]
    out = bytearray()
    count = 0
    for k in range(220):
        if k % 3 == 0:
            ids = tokenizer.encode(rng.choice(texts), add_special_tokens=True).ids
        else:
            ids = [rng.choice(plain) for _ in range(rng.randint(0, 12))]
            if byte_tokens and ids:
                # One stray byte: longer ill-formed runs with good characters in them are kept here, and are
                # replaced as a whole by the library, which a stream could not do.
                at = rng.randrange(len(ids))
                ids.insert(at, tokenizer.token_to_id(f"<0x{rng.randrange(256):02X}>"))
        for skip in (0, 1):
            text = tokenizer.decode(ids, skip_special_tokens=bool(skip)).encode()
            out += bytes([skip]) + ids_bytes(ids) + varint(len(text)) + text
            count += 1
    return out, count


def write_sentencepiece(out, name, model, config, texts):
    folder = out / name
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
    sp = spm.SentencePieceProcessor(model_proto=model)
    rng = random.Random(8)
    encoded, count = bytearray(), 0
    before = [sp.bos_id()] if config.get("add_bos_token", True) else []
    after = [sp.eos_id()] if config.get("add_eos_token", False) else []
    for i, text in enumerate(texts):
        ids = sp.encode(text)
        encoded += varint(i) + bytes([0]) + ids_bytes(ids)
        encoded += varint(i) + bytes([2]) + ids_bytes(before + ids + after) if i % 8 == 0 else b""
        count += 1 + (i % 8 == 0)
    decoded, m = bytearray(), 0
    for k in range(220):
        ids = sp.encode(rng.choice(texts)) if k % 3 == 0 else [rng.randrange(sp.get_piece_size()) for _ in range(rng.randint(0, 12))]
        text = sp.decode(ids).encode()
        decoded += bytes([1]) + ids_bytes(ids) + varint(len(text)) + text
        m += 1
    (folder / "encode.bin").write_bytes(encoded)
    (folder / "decode.bin").write_bytes(decoded)
    print(f"{name:12} {count:6} encode vectors {len(encoded):8} bytes, {m} decode vectors, model {len(model)} bytes", file=sys.stderr)
    return count


def write_family(out, name, tokenizer, texts, store_json):
    folder = out / name
    folder.mkdir(exist_ok=True)
    if store_json:
        data = json.loads(tokenizer.to_str())
        (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    named = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    encoded, n = encode_vectors(tokenizer, texts, named)
    decoded, m = decode_vectors(tokenizer, texts, random.Random(7))
    (folder / "encode.bin").write_bytes(encoded)
    (folder / "decode.bin").write_bytes(decoded)
    print(f"{name:12} {n:6} encode vectors {len(encoded):8} bytes, {m} decode vectors {len(decoded)} bytes", file=sys.stderr)
    return n


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus-dir", default=str(pathlib.Path(random.__file__).parent), help="folder of *.py files")
    parser.add_argument("--tokenizer", action="append", default=[], metavar="NAME=FILE", help="an existing tokenizer.json")
    parser.add_argument("--out", type=pathlib.Path, default=HERE, help="where to write (default: beside this file)")
    parser.add_argument("--seed", type=int, default=20240601)
    parser.add_argument("--texts", type=int, default=1650, help="how many texts")
    parser.add_argument("--only", metavar="REGEX", default="", help="only families whose names match")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    files = sorted(pathlib.Path(args.corpus_dir).glob("*.py"))[:60]
    corpus = "\n".join(f.read_text(encoding="utf-8", errors="ignore") for f in files)
    rng = random.Random(args.seed)
    texts = make_texts(corpus, rng, args.texts)
    data = b"".join(varint(len(t.encode())) + t.encode() for t in texts)
    (args.out / "texts.bin").write_bytes(data)
    print(f"{len(texts)} texts, {len(data)} bytes", file=sys.stderr)

    # Some of everything, so that merges across scripts and bytes exist.
    training = corpus[:400_000].splitlines(keepends=True) + texts[:1650] * 2
    total = 0
    for name, model, config in spm_families(training):
        if name == "spm_bpe_rules":
            charsmap = charsmap_of(model)
        if re.search(args.only, name):
            total += write_sentencepiece(args.out, name, model, config, texts)
    for name, (tokenizer, trainer, added, *finish) in families(charsmap):
        if not re.search(args.only, name):
            continue
        tokenizer.train_from_iterator(few_characters(training) if name.startswith("unigram") else training, trainer)
        if finish:
            tokenizer = finish[0](tokenizer)
        tokenizer.add_tokens(added)
        if name == "llama3":
            bos = tokenizer.token_to_id("<|begin_of_text|>")
            template = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)])
            tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
        if name == "gpt2_prefix":
            pair = [(s, tokenizer.token_to_id(s)) for s in ("</s>", "<s>")]
            tokenizer.post_processor = processors.RobertaProcessing(*pair)
        total += write_family(args.out, name, tokenizer, texts, True)
    for item in args.tokenizer:
        name, path = item.split("=", 1)
        total += write_family(args.out, name, Tokenizer.from_file(path), texts, False)
    print(f"{total} encode vectors", file=sys.stderr)


if __name__ == "__main__":
    main()
