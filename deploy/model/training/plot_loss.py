"""Draws the loss curve: python3 plot_loss.py loss.csv run.json OUT.png"""

import csv
import json
import sys

import matplotlib
import matplotlib.pyplot as plt

matplotlib.use("Agg")


def main():
    source, run, target = sys.argv[1:4]
    arguments = json.load(open(run))["arguments"]
    rows = list(csv.DictReader(open(source)))
    tokens = [int(r["tokens"]) / 1e6 for r in rows]
    held = [r for r in rows if r["heldout_text_loss"]]
    at = [int(r["tokens"]) / 1e6 for r in held]

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=110)
    axes.plot(tokens, [float(r["train_loss"]) for r in rows], color="#2a6f97", lw=1.2, label="training, learnt tokens")
    axes.plot(at, [float(r["heldout_text_loss"]) for r in held], "o-", color="#c1666b", ms=3, lw=1,
              label="held-out running text")
    axes.plot(at, [float(r["heldout_gloss_loss"]) for r in held], "s-", color="#8d8741", ms=3, lw=1,
              label="definitions of held-out words")
    switch = float(arguments["quantize_from"]) * tokens[-1]
    axes.axvline(switch, color="grey", ls=":", lw=1)
    axes.text(switch + 5, 8.2, "NVFP4 weights from here", color="grey", fontsize=8)
    axes.set(xlabel="tokens (millions)", ylabel="cross-entropy, nats a token", ylim=(0, 9), xlim=(0, tokens[-1]))
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.33, 0.98))
    figure.tight_layout()
    figure.savefig(target)


if __name__ == "__main__":
    main()
