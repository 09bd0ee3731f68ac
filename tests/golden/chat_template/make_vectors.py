#!/usr/bin/env python3
"""Makes vectors.json: templates with what `transformers` renders them to (jinja2 in its sandbox).

  python3 make_vectors.py                       # cases.py and templates/*.jinja -> vectors.json
  python3 make_vectors.py --templates DIR OUT   # the conversations of cases.py with the templates of a folder

An entry has the template (or the name of its file here), the request's parts, and either "text" or "error": true;
"message" is set where the template itself raised the error.
"""

import datetime
import json
import pathlib
import sys

import jinja2
from transformers.utils import chat_template_utils

import cases

HERE = pathlib.Path(__file__).resolve().parent
NOW = 1712345678  # 2024-04-05 19:34:38 UTC
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class FixedDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None)


chat_template_utils.datetime = FixedDatetime


def render(template, request):
    entry = {}
    try:
        compiled = chat_template_utils._compile_jinja_template.__wrapped__(template)
        messages = chat_template_utils._alias_reasoning_fields(
            chat_template_utils._normalize_chat_messages(request.get("messages", []))
        )
        entry["text"] = compiled.render(
            messages=messages,
            tools=request.get("tools"),
            documents=None,
            add_generation_prompt=request.get("add_generation_prompt", False),
            **TOKENS,
            **request.get("variables", {}),
        )
    except jinja2.exceptions.TemplateError as e:
        entry["error"] = True
        if type(e) is jinja2.exceptions.TemplateError:
            entry["message"] = e.message
    except (SyntaxError, TypeError, ValueError, ZeroDivisionError, OverflowError, AttributeError, KeyError, IndexError):
        entry["error"] = True
    return entry


def main():
    vectors = []
    if len(sys.argv) == 4 and sys.argv[1] == "--templates":
        for path in sorted(pathlib.Path(sys.argv[2]).glob("*.jinja")):
            source = path.read_text(encoding="utf-8")
            for i in range(len(cases.CONVERSATIONS)):
                vectors.append({"template": source, "conversation": i, **render(source, cases.CONVERSATIONS[i])})
        out = pathlib.Path(sys.argv[3])
    else:
        small = {**cases.CONVERSATIONS[2], "variables": cases.VARIABLES}
        expressions = [e for line in cases.EXPRESSIONS.strip().splitlines() for e in line.split(" | ")]
        for source in ["{{ " + e.strip() + " }}" for e in expressions] + cases.STATEMENTS:
            vectors.append({"template": source, **render(source, small)})
        for path in sorted((HERE / "templates").glob("*.jinja")):
            source = path.read_text(encoding="utf-8")
            for i in range(len(cases.CONVERSATIONS)):
                vectors.append({"file": path.name, "conversation": i, **render(source, cases.CONVERSATIONS[i])})
        out = HERE / "vectors.json"
    data = {
        "now": NOW,
        "tokens": TOKENS,
        "variables": cases.VARIABLES,
        "conversations": cases.CONVERSATIONS,
        "small_conversation": 2,
        "vectors": vectors,
    }
    lines = json.dumps(data, ensure_ascii=False, indent=0, sort_keys=False)
    out.write_text(lines + "\n", encoding="utf-8")
    errors = sum("error" in v for v in vectors)
    print(f"{len(vectors)} vectors, {errors} of them errors, {len(lines)} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
