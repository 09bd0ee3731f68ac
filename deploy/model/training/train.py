"""Trains the bundled model on one GPU, for a fixed time.

    python3 train.py --data PACKED_DIR --out OUT --seconds 560

The schedule is laid out from the speed that the first steps show, so that the run ends within --seconds. Writes
OUT/weights-{0..3}.safetensors (BF16, rewritten while it runs), OUT/loss.csv, OUT/log.txt and OUT/run.json.
"""

import argparse
import csv
import json
import multiprocessing
import os
import pathlib
import time

import numpy as np
import safetensors.torch
import torch

import config
import model as training_model
import muon
from pack_data import LEARN, START

PAD = 8189 | START  # <|endoftext|>, a document of its own, not learnt
TIMED_FROM, TIMED_TO = 30, 80  # the steps whose speed lays out the schedule
BALANCE, ROUTER_Z, LOGIT_Z = 0.01, 1e-3, 1e-4


def rows_of(data, length, text_share, seed):
    """One epoch: the documents in random order, packed into rows of `length` tokens. Returns uint16 [rows, length].

    A document that does not fit in what is left of a row starts the next one; the gap is padded. Of the running
    text only a random share is taken: it repeats less often than the dictionary.
    """
    words, lengths, running = data
    random = np.random.default_rng(seed)
    starts = np.concatenate(([0], np.cumsum(lengths[:-1], dtype=np.int64)))
    order = random.permutation(np.flatnonzero((running == 0) | (random.random(len(running)) < text_share)))
    sizes = lengths[order].astype(np.int64)
    places, at = [], 0
    for size in sizes.tolist():
        left = length - at % length
        if size > left:
            at += left
        places.append(at)
        at += size
    total = -(-at // length) * length
    out = np.full(total, PAD, np.uint16)
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    out[np.repeat(np.array(places), sizes) + within] = words[np.repeat(starts[order], sizes) + within]
    rows = out.reshape(-1, length)
    return rows[random.permutation(len(rows))]


def load(path):
    f = np.load(path)
    return f["words"], f["lengths"], f["running"]


def epoch_worker(path, length, text_share, seed, queue):
    data = load(path)
    for epoch in range(10**6):
        queue.put(rows_of(data, length, text_share, seed + epoch).view(np.int16))


class Batches:
    """Endless batches of rows, on the device; epochs are packed by another process."""

    def __init__(self, path, args, device):
        self.args, self.device, self.rows, self.at, self.epochs = args, device, None, 0, 0
        context = multiprocessing.get_context("spawn")
        self.queue = context.Queue(maxsize=2)
        self.worker = context.Process(
            target=epoch_worker, args=(path, args.length, args.text_share, args.seed, self.queue), daemon=True)
        self.worker.start()

    def next(self):
        if self.rows is None or self.at + self.args.rows > len(self.rows):
            self.rows, self.at = torch.from_numpy(self.queue.get()).to(self.device), 0
            self.epochs += 1
        batch = self.rows[self.at : self.at + self.args.rows]
        self.at += self.args.rows
        return unpack(batch)


def unpack(batch):
    """int16 rows -> tokens, positions in the document, document numbers, targets and which of them count."""
    bits = batch.long() & 0xFFFF
    tokens, start, learn = bits & (LEARN - 1), bits >> 15, (bits >> 14) & 1
    documents = start.cumsum(1).int()
    index = torch.arange(bits.shape[1], device=bits.device).expand_as(bits)
    positions = index - torch.where(start > 0, index, 0).cummax(1).values
    targets = torch.roll(tokens, -1, 1)
    weights = torch.roll(learn * (1 - start), -1, 1).float()
    weights[:, -1] = 0
    return tokens, positions, documents, targets, weights


def evaluate(model, rows, attention, batch, quantize):
    """Mean cross-entropy of all learnt tokens in `rows`. (With gradients on: the compiled graph of training.)"""
    total = count = 0.0
    for at in range(0, len(rows), batch):
        part = rows[at : at + batch]
        if len(part) < batch:  # keep one shape: fill up with padding
            pad = torch.full((batch - len(part), part.shape[1]), PAD - 65536, dtype=part.dtype, device=part.device)
            part = torch.cat((part, pad))
        tokens, positions, documents, targets, weights = unpack(part)
        x = model.hidden(tokens, positions, attention.attend, attention.mask_of(documents), quantize)[0]
        loss, _, n = model.head_loss(x, model.embed, targets, weights)
        total, count = total + loss.detach().item(), count + n.item()
    return total / count


def save(model, shape, out):
    """Four parts of BF16 weights, each replaced at once."""
    state = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    names, parts = list(state), [dict() for _ in range(4)]
    sizes = [0] * 4
    for name in sorted(names, key=lambda n: -state[n].numel()):
        smallest = sizes.index(min(sizes))
        parts[smallest][name] = state[name]
        sizes[smallest] += state[name].numel()
    for i, part in enumerate(parts):
        path = out / f"weights-{i}.safetensors"
        safetensors.torch.save_file(part, f"{path}.new", metadata={"shape": json.dumps(vars(shape))})
        os.replace(f"{path}.new", path)


def main():
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=560, help="wall time of the whole run")
    parser.add_argument("--rows", type=int, default=32, help="rows a step")
    parser.add_argument("--length", type=int, default=2048, help="tokens a row")
    parser.add_argument("--lr", type=float, default=2.5e-3, help="peak learning rate of the matrices (Muon)")
    parser.add_argument("--embed-lr", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.02)
    parser.add_argument("--text-share", type=float, default=0.5, help="running text taken in an epoch")
    parser.add_argument("--decay-from", type=float, default=0.35, help="progress at which the rate starts to fall")
    parser.add_argument("--quantize-from", type=float, default=0.5, help="progress from which weights are NVFP4")
    parser.add_argument("--steps", type=int, help="a fixed number of steps instead of a fixed time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="a toy shape, to try the script on a CPU")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    log_file = open(args.out / "log.txt", "w")

    def log(text):
        line = f"{time.monotonic() - began:7.1f}s {text}"
        print(line, flush=True)
        print(line, file=log_file, flush=True)

    batches = Batches(args.data / "train.npz", args, device)
    shape = config.TINY if args.tiny else config.BUNDLED
    model = training_model.Model(shape).to(device)
    held_out = {}
    for name in ("heldout_text", "heldout_gloss"):
        rows = rows_of(load(args.data / f"{name}.npz"), args.length, 1.0, 0).view(np.int16)
        held_out[name] = torch.from_numpy(rows).to(device)
    if device == "cuda":
        attention = training_model.BlockAttention
        for layer in model.layers:
            layer.compile()
        model.head_loss = torch.compile(training_model.head_loss)
    else:
        attention = training_model.PlainAttention
    matrices = {n: p for n, p in model.named_parameters() if p.dim() > 1 and n != "embed" and "router" not in n}
    others = [{"params": [model.embed], "lr": args.embed_lr},
              {"params": [p for n, p in model.named_parameters() if "router" in n], "lr": args.embed_lr / 2},
              {"params": [p for p in model.parameters() if p.dim() == 1], "lr": args.embed_lr}]
    adam = torch.optim.AdamW(others, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=device == "cuda")
    matrix_optimizer = muon.Muon(model, matrices, args.weight_decay, compiled=device == "cuda")
    adam_rates = [g["lr"] for g in adam.param_groups]
    quantize = torch.zeros((), device=device)
    device_name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    log(f"{sum(p.numel() for p in model.parameters())} parameters on {device_name}")

    # The compiled model against the plain one, before anything is learnt.
    sample = held_out["heldout_gloss"][:4]
    quantize.fill_(1.0)
    compiled = evaluate(model, sample, attention, args.rows, quantize)
    with torch.compiler.set_stance("force_eager"):
        eager = evaluate(model, sample, training_model.PlainAttention, args.rows, quantize)
    log(f"loss before training: {compiled:.5f} compiled, {eager:.5f} plain")
    if abs(compiled - eager) > 0.01:
        raise SystemExit("the compiled model differs from the plain one")

    total = args.steps
    curve = csv.writer(open(args.out / "loss.csv", "w", newline="", buffering=1))
    curve.writerow(["step", "tokens", "seconds", "train_loss", "heldout_text_loss", "heldout_gloss_loss", "rate"])
    running, step = torch.zeros(4, device=device), 0
    timed = saved = time.monotonic()
    progress = 0.0
    while total is None or step < total:
        if step == TIMED_FROM or (step == TIMED_TO and total is None):
            if device == "cuda":
                torch.cuda.synchronize()
            now = time.monotonic()
            if step == TIMED_TO and total is None:
                pace = (now - timed) / (TIMED_TO - TIMED_FROM)
                spare = 12 + 0.03 * args.seconds  # evaluations, saving and the process's own exit
                total = step + max(1, int((args.seconds - (now - began) - spare) / pace))
                log(f"{pace * 1000:.1f} ms a step, {args.rows * args.length / pace:.0f} tokens/s: {total} steps")
            timed = now
        progress = step / total if total else 0.0
        rate = min(1.0, (step + 1) / 200) * min(1.0, max(0.0, (1 - progress) / (1 - args.decay_from)) + 0.01)
        quantize.fill_(1.0 if progress >= args.quantize_from else 0.0)

        tokens, positions, documents, targets, weights = batches.next()
        x, balance, z, loads = model.hidden(tokens, positions, attention.attend, attention.mask_of(documents), quantize)
        loss, logit_z, count = model.head_loss(x, model.embed, targets, weights)
        loss, logit_z = loss / count, logit_z / count
        (loss + BALANCE * balance + ROUTER_Z * z + LOGIT_Z * logit_z).backward()
        for group, base in zip(adam.param_groups, adam_rates):
            group["lr"] = base * rate
        adam.step()
        matrix_optimizer.step(args.lr * rate)
        for p in model.parameters():
            p.grad = None
        running += torch.stack((loss.detach(), balance.detach() / shape.layers,
                                loads.detach().min(), torch.ones((), device=device)))
        step += 1

        last = step == total
        if step % 50 == 0 or last:
            mean = (running / running[3]).tolist()
            running.zero_()
            held = ["", ""]
            if step % 1000 == 0 or last:
                held = [evaluate(model, held_out[n], attention, args.rows, quantize)
                        for n in ("heldout_text", "heldout_gloss")]
            seconds = time.monotonic() - began
            curve.writerow([step, step * args.rows * args.length, f"{seconds:.1f}", f"{mean[0]:.4f}",
                            *(f"{h:.4f}" if h else "" for h in held), f"{rate:.4f}"])
            if step % 250 == 0 or last or held[0]:
                log(f"step {step}/{total} epoch {batches.epochs} loss {mean[0]:.4f} balance {mean[1]:.3f} "
                    f"least load {mean[2]:.3f} held-out {held} rate {rate:.3f} nvfp4 {quantize.item():.0f}")
            if not np.isfinite(mean[0]):
                raise SystemExit("the loss is not finite")
        if time.monotonic() - saved > 120:
            save(model, shape, args.out)
            saved = time.monotonic()
        if time.monotonic() - began > args.seconds - 4:
            log("out of time: stopping early")
            break
    save(model, shape, args.out)
    final = {}
    for label, amount in (("bf16", 0.0), ("nvfp4", 1.0)):
        quantize.fill_(amount)
        final[label] = {n: evaluate(model, rows, attention, args.rows, quantize) for n, rows in held_out.items()}
    run = {"arguments": {k: str(v) for k, v in vars(args).items()}, "device": str(device), "steps": step,
           "device_name": device_name, "epochs": batches.epochs,
           "tokens": step * args.rows * args.length, "seconds": time.monotonic() - began, "held_out_loss": final,
           "torch": torch.__version__, "loads": loads.mean(0).tolist()}
    (args.out / "run.json").write_text(json.dumps(run, indent=1))
    log(json.dumps(final))
    batches.worker.terminate()


if __name__ == "__main__":
    main()
