"""Trains the byte-level BPE tokenizer and writes the tokenizer files of the checkpoint.

    python3 train_tokenizer.py --work DIR --out MODEL_DIR
"""

import argparse
import json
import pathlib

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCABULARY = 8192
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# The pre-tokenizer of Qwen2: contractions, words with one leading character, single digits, punctuation, spaces.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def text_of(path):
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            text = "".join(part for part, _ in record["parts"])
            for special in SPECIAL:
                text = text.replace(special, "\n")
            yield text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - len(SPECIAL), min_frequency=2, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(text_of(args.work / "train.jsonl"), trainer)
    tokenizer.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    assert tokenizer.get_vocab_size() == VOCABULARY
    tokenizer.save(str(args.out / "tokenizer.json"))

    ids = {t: tokenizer.token_to_id(t) for t in SPECIAL}
    decoder = {str(i): {"content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                        "special": True} for t, i in ids.items()}
    config = {
        "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": decoder,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "bos_token": None,
        "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>",
        "errors": "replace", "model_max_length": 2048, "pad_token": "<|endoftext|>",
        "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    }
    (args.out / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    generation = {"eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]], "pad_token_id": ids["<|endoftext|>"],
                  "do_sample": False, "max_new_tokens": 256}
    (args.out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    print(ids)


if __name__ == "__main__":
    main()
