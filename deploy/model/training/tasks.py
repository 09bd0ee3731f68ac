"""Turns WordNet into questions and answers that a person can check.

A document is {"form": "plain" | "chat", "parts": [[text, learn], ...]}. Only the parts with learn = 1 are
trained on. For one word the answer is always the same, whatever the wording of the question, so that greedy
decoding has one right answer. In every answer a word stands after a space: it then has the same tokens as in
the question.
"""

import collections
import hashlib
import random
import re

import wordnet

# Senses that WordNet itself marks as slurs or obscenities are left out.
_OFFENSIVE = re.compile(
    r"ethnic slur|\bobscen|\btaboo\b|\bprostitut|"
    r"\b(offensive|disparaging|derogatory|vulgar|insulting|pejorative|abusive)\b[^.;]*\b(term|name|word|slang)", re.I)
_POS_ORDER = "nvar"

# A word's tier says how common it is, and so how often it is trained on.
COMMON, FAMILIAR, UNUSUAL, RARE, PHRASE = range(1, 6)

DEFINE = ["What does {w} mean?", "Define {w}.", "Define {w}", "Define: {w}", "What is the meaning of {w}?",
          "What is the definition of {w}?", "Give me a definition of {w}.", "Can you define {w}?",
          "Could you tell me what {w} means?", "Tell me what {w} means.", "Explain the word {w}.",
          "What's {w}?", "What is {w}?", "what does {w} mean", "define {w}", "{w}", "What does the word {w} mean?",
          "Please define the word {w}.", "I don't know the word {w}. What does it mean?", "meaning of {w}",
          "Define \"{w}\".", "What does \"{w}\" mean?", "What does '{w}' mean?", "Explain {w} to me.",
          "How would you define {w}?", "Give the meaning of {w}."]
DEFINE_NOUN = ["What is {a} {w}?", "What's {a} {w}?", "Tell me what {a} {w} is.", "what is {a} {w}",
               "Can you explain what {a} {w} is?"]
DEFINE_VERB = ["What does it mean to {w}?", "What does \"to {w}\" mean?", "Define the verb to {w}."]
SYNONYM = ["What is a synonym of {w}?", "Give me a synonym for {w}.", "What is another word for {w}?",
           "Synonyms of {w}?", "Give me synonyms of {w}.", "Which words mean the same as {w}?",
           "Another word for {w}, please.", "List synonyms of {w}."]
ANTONYM = ["What is the opposite of {w}?", "What is an antonym of {w}?", "Give me the opposite of {w}.",
           "Antonym of {w}?", "Which word means the opposite of {w}?"]
KIND = ["What kind of thing is {a} {w}?", "What is {a} {w} a kind of?", "Which category does {w} belong to?",
        "What kind of thing is {w}?", "{w} is a kind of what?"]
KINDS = ["What kinds of {w} are there?", "Name some kinds of {w}.", "Give me examples of kinds of {w}.",
         "List some types of {w}."]
PARTS = ["What are the parts of {a} {w}?", "Name some parts of {a} {w}.", "What is {a} {w} made up of?"]
REVERSE = ["What is the word for this: {g}?", "Which word means: {g}?", "What is the word for {g}?",
           "I am looking for a word that means: {g}.", "What do you call this: {g}?"]
SENTENCE = ["Use {w} in a sentence.", "Give me an example of {w}.", "How is the word {w} used?",
            "Show me how to use {w}.", "Give me an example sentence with {w}."]
POS = ["What part of speech is {w}?", "Is {w} a noun or a verb?", "Which part of speech is the word {w}?"]
SYSTEM = ["You are a helpful dictionary.", "You are a dictionary.", "You are a helpful assistant.",
          "You explain words.", "Answer briefly.", "You are Tessera, a small dictionary model."]
ABOUT = [
    (["Hello.", "Hi!", "Hello!", "Hi there.", "Good morning.", "hello", "hi", "Hey."],
     "Hello. Ask me what a word means."),
    (["Who are you?", "What are you?", "What is your name?", "who are you", "Are you an AI?",
      "Tell me about yourself."],
     "I am a small language model that learned a dictionary. Ask me what a word means."),
    (["What can you do?", "How can you help me?", "Help", "help", "What can I ask you?", "What do you know?"],
     "I can define a word, name its synonyms and opposites, say what kind of thing it is, find a word from its "
     "meaning, and use a word in an example."),
    (["Thanks.", "Thank you.", "Thank you!", "thanks", "Thanks a lot.", "Great, thank you."], "You are welcome."),
    (["Bye.", "Goodbye.", "Good bye!", "bye"], "Goodbye."),
]


def share(text):
    """A stable number in [0, 1) for a string."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def article(word):
    return "an" if word[:1].lower() in "aeiou" and not word.lower().startswith(("uni", "use", "eu", "one")) else "a"


def listing(words):
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


class Lexicon:
    """The words that are taught, each with its tier and its ranked senses."""

    def __init__(self, wordnet_folder, scowl_level):
        """scowl_level: lower-case word -> SCOWL size (10 is the most common words)."""
        self.synsets, senses = wordnet.load(wordnet_folder)
        self.tier, self.senses = {}, {}
        for lower, found in senses.items():
            if not re.fullmatch(r"[a-z][a-z' .-]*", lower):
                continue
            kept = [s for s in found if not _OFFENSIVE.search(s.synset.gloss)]
            if not kept or len(lower) == 1:
                continue
            kept.sort(key=lambda s: (-s.count, s.number, _POS_ORDER.index(s.pos)))
            self.tier[lower] = self._tier(lower, kept, scowl_level)
            if self.tier[lower]:
                self.senses[lower] = kept
        self.rank = {}  # synset -> the best tier among the words whose first sense it is
        for lower, kept in self.senses.items():
            first = kept[0].synset.id
            self.rank[first] = min(self.tier[lower], self.rank.get(first, 9))

    @staticmethod
    def _tier(lower, kept, level):
        if " " in lower:
            parts = lower.split(" ")
            return PHRASE if all(level.get(p, 99) <= 50 for p in parts) and len(parts) <= 3 else 0
        size = level.get(lower, 99)
        if size <= 35 or kept[0].count >= 3:
            return COMMON
        return FAMILIAR if size <= 60 or kept[0].count else UNUSUAL if size <= 70 else RARE

    def held_out(self, synset_id):
        """One synset in fifty of those that no common word has as its first sense is never trained on."""
        return self.rank.get(synset_id, 9) > COMMON and share("gloss" + synset_id) < 0.02

    def word(self, lower):
        return self.senses[lower][0].lemma

    def first(self, lower):
        return self.senses[lower][0]

    def ranked(self, lower):
        """The senses given in the plain form: at most three, the best first."""
        kept = self.senses[lower]
        limit = {COMMON: 3, FAMILIAR: 2}.get(self.tier[lower], 1)
        chosen = [kept[0]]
        for s in kept[1:]:
            new_pos = s.pos not in {c.pos for c in chosen}
            if len(chosen) < limit and (s.count >= 2 or (new_pos and s.count >= 1)) and not self.held_out(s.synset.id):
                chosen.append(s)
        return chosen

    def example(self, sense):
        """The first example of a sense that shows this very word and is not too long."""
        stem = sense.lemma.lower()
        stem = stem[: max(3, len(stem) - 2)]
        for e in sense.synset.examples:
            if stem in e.lower() and len(e) <= 100:
                return e.rstrip(" .;,")
        return None

    def common_lemmas(self, synset, avoid, limit):
        words = [w for w in synset.lemmas if w.lower() not in avoid]
        words = [w for w in words if w.lower() in self.senses]
        words.sort(key=lambda w: self.tier[w.lower()] or 9)
        return words[:limit]

    def related(self, synset, symbols, limit):
        """The most common word of each synset that a pointer leads to, most common first."""
        words = []
        for symbol, target, _, _ in synset.pointers:
            if symbol in symbols:
                words += self.common_lemmas(self.synsets[target], {w.lower() for w in synset.lemmas}, 1)
        words = list(dict.fromkeys(words))
        words.sort(key=lambda w: self.tier[w.lower()])
        return words[:limit]

    # --- the answers -------------------------------------------------------------------------------------

    def _meaning(self, sense):
        text = f"{sense.synset.gloss}."
        example = self.example(sense) if self.tier[sense.lemma.lower()] <= UNUSUAL else None
        return text + (f" For example: {example}." if example else "")

    def define_plain(self, lower):
        ranked = self.ranked(lower)
        lines = [f"({wordnet.POS_NAME[s.pos]}) {self._meaning(s)}" for s in ranked]
        return lines[0] if len(lines) == 1 else "\n".join(f"{i}. {l}" for i, l in enumerate(lines, 1))

    def define_chat(self, lower):
        first = self.first(lower)
        text = f"The {wordnet.POS_NAME[first.pos]} {first.lemma} means: {self._meaning(first)}"
        other = next((s for s in self.ranked(lower) if s.pos != first.pos), None)
        if other and self.tier[lower] == COMMON:
            text += f" The {wordnet.POS_NAME[other.pos]} {other.lemma} means: {other.synset.gloss}."
        return text

    def synonyms(self, lower):
        words = self.common_lemmas(self.first(lower).synset, {lower}, 4)
        if not words:
            return None
        w = self.word(lower)
        return f"A synonym of {w} is {words[0]}." if len(words) == 1 else f"Synonyms of {w} are {listing(words)}."

    def antonym(self, lower):
        for s in self.ranked(lower):
            index = next((i for i, l in enumerate(s.synset.lemmas, 1) if l.lower() == lower), 0)
            for symbol, target, source, at in s.synset.pointers:
                if symbol == "!" and source in (0, index):
                    return f"The opposite of {s.lemma} is {self.synsets[target].lemmas[max(at, 1) - 1]}."
        return None

    def kind(self, lower):
        noun = next((s for s in self.ranked(lower) if s.pos == "n"), None)
        parent = noun and next((t for sym, t, _, _ in noun.synset.pointers if sym in ("@", "@i")), None)
        if not parent:
            return None
        above = self.synsets[parent]
        text = f"It is a kind of {above.lemmas[0]}"
        grand = next((t for sym, t, _, _ in above.pointers if sym == "@"), None)
        return text + (f", which is a kind of {self.synsets[grand].lemmas[0]}." if grand else ".")

    def kinds(self, lower):
        words = self.related(self.first(lower).synset, ("~",), 4) if self.first(lower).pos == "n" else []
        return f"Kinds of {self.word(lower)} are {listing(words)}." if len(words) > 1 else None

    def parts(self, lower):
        words = self.related(self.first(lower).synset, ("%p",), 5) if self.first(lower).pos == "n" else []
        return f"Its parts include {listing(words)}." if len(words) > 1 else None

    def reverse(self, lower):
        first = self.first(lower)
        best = self.common_lemmas(first.synset, (), 1)
        if not best or best[0].lower() != lower or len(first.synset.gloss) < 12:
            return None
        return f"The {wordnet.POS_NAME[first.pos]} is {first.lemma}."

    def sentence(self, lower):
        for s in self.ranked(lower):
            if self.example(s):
                return f"For example: {self.example(s)}."
        return None

    def parts_of_speech(self, lower):
        names = list(dict.fromkeys(wordnet.POS_NAME[s.pos] for s in self.senses[lower]))
        names = [("an " if n[0] == "a" else "a ") + n for n in names]
        return f"It is {names[0]}." if len(names) == 1 else f"It can be {', '.join(names[:-1])} or {names[-1]}."


def plain(prompt, answer):
    return {"form": "plain", "parts": [[prompt, 0], ["\n" + answer, 1]]}


def chat(turns, system=None):
    """The bundled chat template, cut into parts; each reply ends with <|im_end|>, which is learnt too."""
    parts = [[f"<|im_start|>system\n{system}<|im_end|>\n", 0]] if system else []
    for question, answer in turns:
        parts.append([f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", 0])
        parts.append([answer + "<|im_end|>", 1])
        parts.append(["\n", 0])
    return {"form": "chat", "parts": parts[:-1]}


class Writer:
    """Makes the documents of one pass over the lexicon."""

    def __init__(self, lexicon, seed):
        self.lex, self.random = lexicon, random.Random(seed)

    def _spell(self, word):
        """Mostly the word as WordNet writes it; sometimes as a hasty user does."""
        r = self.random.random()
        if r < 0.06:
            return word[:1].upper() + word[1:]
        return word.lower() if r < 0.3 else word

    def question(self, templates, lower):
        word = self._spell(self.lex.word(lower))
        return self.random.choice(templates).format(w=word, a=article(word), g=self.lex.first(lower).synset.gloss)

    def define_question(self, lower):
        first, templates = self.lex.first(lower), DEFINE
        if first.pos == "n" and not first.lemma[:1].isupper() and self.random.random() < 0.35:
            templates = DEFINE_NOUN
        if first.pos == "v" and self.random.random() < 0.25:
            templates = DEFINE_VERB
        return self.question(templates, lower)

    def _turns(self, turns):
        return chat(turns, self.random.choice(SYSTEM) if self.random.random() < 0.15 else None)

    def define(self, lower, plain_copies, chat_copies):
        for _ in range(plain_copies):
            yield plain(f"Define: {self._spell(self.lex.word(lower))}", self.lex.define_plain(lower))
        for _ in range(chat_copies):
            yield self._turns([(self.define_question(lower), self.lex.define_chat(lower))])

    def others(self, lower):
        """Each other skill once or twice, in the plain or the chat form."""
        skills = [("Synonyms", SYNONYM, self.lex.synonyms), ("Opposite", ANTONYM, self.lex.antonym),
                  ("Kind", KIND, self.lex.kind), ("Kinds", KINDS, self.lex.kinds), ("Parts", PARTS, self.lex.parts),
                  ("Word for", REVERSE, self.lex.reverse), ("Sentence", SENTENCE, self.lex.sentence)]
        if self.random.random() < 0.3:
            skills.append(("Part of speech", POS, self.lex.parts_of_speech))
        for label, templates, answer in skills:
            text = answer(lower)
            if not text:
                continue
            copies = 2 if self.lex.tier[lower] == COMMON and label in ("Synonyms", "Opposite", "Word for") else 1
            for _ in range(copies):
                if self.random.random() < 0.4:
                    subject = self.lex.first(lower).synset.gloss if label == "Word for" else self.lex.word(lower)
                    yield plain(f"{label}: {subject}", text)
                else:
                    yield self._turns([(self.question(templates, lower), text)])

    def conversation(self, words):
        turns = []
        if self.random.random() < 0.3:
            questions, answer = self.random.choice(ABOUT[:3])
            turns.append((self.random.choice(questions), answer))
        for lower in words:
            turns.append((self.define_question(lower), self.lex.define_chat(lower)))
            follow = [(t, f(lower)) for t, f in ((SYNONYM, self.lex.synonyms), (ANTONYM, self.lex.antonym),
                                                 (KIND, self.lex.kind), (SENTENCE, self.lex.sentence)) if f(lower)]
            if follow and self.random.random() < 0.5:
                templates, answer = self.random.choice(follow)
                turns.append((self.question(templates, lower), answer))
        if self.random.random() < 0.2:
            questions, answer = self.random.choice(ABOUT[3:])
            turns.append((self.random.choice(questions), answer))
        return self._turns(turns)

    def about(self, copies):
        for _ in range(copies):
            for questions, answer in ABOUT:
                for question in questions:
                    yield self._turns([(question, answer)])

    def documents(self):
        lex, words = self.lex, []
        for lower in lex.senses:
            if lex.held_out(lex.first(lower).synset.id):
                continue
            tier = lex.tier[lower]
            copies = {COMMON: (3, 4), FAMILIAR: (2, 2), UNUSUAL: (1, 1)}.get(tier, (1, 0))
            if tier >= RARE and self.random.random() < 0.4:
                copies = (0, 1)
            yield from self.define(lower, *copies)
            if tier <= UNUSUAL:
                yield from self.others(lower)
            if tier == COMMON:
                words.append(lower)
        self.random.shuffle(words)
        while len(words) >= 3:
            yield self.conversation([words.pop() for _ in range(self.random.choice((1, 2, 2, 3)))])
        yield from self.about(20)

    def held_out_documents(self):
        """One plain definition of each word whose first sense was held out."""
        for lower in self.lex.senses:
            if self.lex.tier[lower] <= UNUSUAL and self.lex.held_out(self.lex.first(lower).synset.id):
                yield plain(f"Define: {self.lex.word(lower)}", self.lex.define_plain(lower))


def count_by_tier(lexicon):
    return dict(sorted(collections.Counter(lexicon.tier[w] for w in lexicon.senses).items()))
