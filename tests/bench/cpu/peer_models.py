"""The models of peers.py in each program's form, written once into a folder."""

import dataclasses
import subprocess

import gguf_models
import hf_models
import results


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    title: str
    dummy: bool
    context: int
    output: int     # tokens that a stream generates
    repeats: int    # of each point in a round
    prompts: tuple  # lengths of prompts that are timed
    forms: tuple    # of llama.cpp


# The bundled model's context ends at 2048 tokens, output included.
SMALL = Model("bundled", "the bundled model (25 M parameters)", False, 2048, 256, 3, (512, 2040), ("NVFP4", "Q4_0", "BF16"))
LARGE = Model("large", "Qwen3-30B-A3B's shapes, 8 layers, dummy weights", True, 2304, 48, 1, (512, 2048), ("NVFP4", "Q4_0"))
MODELS = {model.name: model for model in (SMALL, LARGE)}
BUNDLED = results.ROOT / "deploy" / "model"
LARGE_LAYERS = 8


def large_config():
    config = gguf_models.read_config(results.ROOT / "tests" / "bench" / "models" / "qwen3-30b-a3b")
    return config | {"num_hidden_layers": LARGE_LAYERS}


def text_tokens(model):
    """So many ids, from 0, are text: the special ones come last."""
    return (large_config() if model.dummy else gguf_models.read_config(BUNDLED))["eos_token_id"]


def _once(path, write):
    """`path`, written by write(temporary path) if it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name("part-" + path.name)
        write(part)
        part.rename(path)
    return path


def gguf(model, form, folder, programs):
    """The model as a GGUF file. Q4_0 is what llama-quantize makes of that name: with an output matrix of Q6_K (Q8_0 where its
    rows are no whole blocks of that)."""
    path = folder / f"{model.name}-{form.lower()}.gguf"
    if model.dummy:
        kinds = ("Q6_K", "Q4_0") if form == "Q4_0" else ("BF16", "BF16")
        return _once(path, lambda part: gguf_models.write_dummy(large_config(), form, part, *kinds))
    if form != "Q4_0":
        return _once(path, lambda part: gguf_models.write_checkpoint(BUNDLED, form, part))
    source = gguf(model, "BF16", folder, programs)
    return _once(path, lambda part: subprocess.run([programs / "llama-quantize", source, part, "Q4_0"], check=True,
                                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))


def hugging_face(model, folder):
    """The model as a directory for vLLM: BF16 weights, or shapes alone."""
    path = folder / f"{model.name}-bf16"
    if model.dummy:
        return _once(path, lambda part: hf_models.write_shapes(large_config(), part))
    return _once(path, lambda part: hf_models.write_bf16(BUNDLED, part))


def ours(model, folder):
    """The model as a directory for tessera-server."""
    return hugging_face(model, folder) if model.dummy else BUNDLED
