#!/usr/bin/env python3
"""Tests of what the programs in tests/bench/cpu do without a server: converted models, answers taken apart, figures, pictures."""

import json
import pathlib
import random
import struct
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ET
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "cpu"))
import chart
import cost_curves
import dummy_weights
import gguf_file
import gguf_models
import hf_models
import http_streams
import nvfp4_forms
import peers
import results
from peer_models import SMALL
from safetensors_file import SafetensorsFile

CONFIG = {"hidden_size": 128, "intermediate_size": 64, "moe_intermediate_size": 64, "head_dim": 64, "num_attention_heads": 2,
          "num_key_value_heads": 1, "num_experts": 3, "num_experts_per_tok": 2, "num_hidden_layers": 2, "vocab_size": 300,
          "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
          "eos_token_id": 299}


def element(codes, i):
    return codes[i // 2] >> 4 * (i % 2) & 15


class Gguf:
    """What a GGUF file says: fields, and (type number, shape outermost first, offset) of each tensor."""

    def __init__(self, data):
        self.data, self.at = data, 4
        version, tensors, fields = self.take("<IQQ")
        assert data[:4] == b"GGUF" and version == 3
        self.fields = {}
        for _ in range(fields):
            key = self.string()
            self.fields[key] = self.value(*self.take("<I"))
        self.tensors = {}
        for _ in range(tensors):
            name = self.string()
            extents = self.take(f"<{self.take('<I')[0]}Q")
            kind, offset = self.take("<IQ")
            self.tensors[name] = kind, list(reversed(extents)), offset
        self.start = -(-self.at // 32) * 32

    def take(self, layout):
        out = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return out

    def string(self):
        (length,) = self.take("<Q")
        self.at += length
        return self.data[self.at - length:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            item, count = self.take("<IQ")
            return [self.value(item) for _ in range(count)]
        return self.take({4: "<I", 5: "<i", 6: "<f", 7: "<?"}[kind])[0]

    def bytes(self, name, count):
        at = self.start + self.tensors[name][2]
        return self.data[at:at + count]


class Nvfp4Forms(unittest.TestCase):
    def test_e4m3(self):
        for byte, value in ((0, 0.0), (1, 2 ** -9), (7, 7 * 2 ** -9), (8, 2 ** -6), (0x38, 1.0), (0x7E, 448.0), (0xB8, -1.0)):
            self.assertEqual(nvfp4_forms.e4m3(byte), value)

    def test_bf16_rounds_to_nearest_even(self):
        for value, bits in ((1.0, 0x3F80), (1 + 2 ** -8, 0x3F80), (1 + 3 * 2 ** -8, 0x3F82), (1 + 2 ** -8 + 2 ** -20, 0x3F81),
                            (-0.0, 0x8000)):
            self.assertEqual(struct.unpack("<H", nvfp4_forms.bf16(value))[0], bits, value)

    def test_ggml_blocks_hold_the_same_elements(self):
        draw = random.Random(1)
        codes, scales = draw.randbytes(3 * 32), draw.randbytes(3 * 4)
        blocks = nvfp4_forms.ggml_blocks(codes, scales)
        self.assertEqual(len(blocks), 3 * 36)
        for i in range(3 * 64):
            block, run, j = blocks[i // 64 * 36:], i % 64 // 16, i % 16
            self.assertEqual(block[run], scales[i // 16])
            self.assertEqual(block[4 + 8 * run + j % 8] >> 4 * (j // 8) & 15, element(codes, i))
        with self.assertRaises(ValueError):
            nvfp4_forms.ggml_blocks(codes[:24], scales[:3])

    def test_bf16_values(self):
        codes, scales = random.Random(2).randbytes(16), bytes([0x38, 0x01])
        values = nvfp4_forms.bf16_values(codes, scales, 0.75)
        for i in range(32):
            want = nvfp4_forms.E2M1[element(codes, i)] * (1.0, 2 ** -9)[i // 16] * 0.75
            self.assertEqual(values[2 * i:2 * i + 2], nvfp4_forms.bf16(want))


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def checkpoint(self):
        """A checkpoint of CONFIG whose matrices are NVFP4, and {name: bytes} of them."""
        draw, tensors = random.Random(3), {}

        def add(name, dtype, shape, data):
            tensors[name] = {"dtype": dtype, "shape": shape}, data

        matrices = [f"model.layers.{i}.{name}" for i in range(CONFIG["num_hidden_layers"]) for name in
                    [old for old, _ in gguf_models.ATTENTION] +
                    [f"mlp.experts.{e}.{old}" for e in range(CONFIG["num_experts"]) for old, _ in gguf_models.EXPERTS]]
        for name in matrices:
            rows, columns = gguf_models.matrix_shape(CONFIG, name)
            add(name + ".weight", "U8", [rows, columns // 2], draw.randbytes(rows * columns // 2))
            add(name + ".weight_scale", "F8_E4M3", [rows, columns // 16], draw.randbytes(rows * columns // 16))
            add(name + ".weight_scale_2", "F32", [], struct.pack("<f", 0.5 + len(tensors)))
        for name in ["model.embed_tokens", "lm_head"] + [f"model.layers.{i}.mlp.gate" for i in range(2)]:
            shape = gguf_models.matrix_shape(CONFIG, name)
            add(name + ".weight", "BF16", shape, draw.randbytes(2 * shape[0] * shape[1]))
        for name in ["model.norm"] + [f"model.layers.{i}.{old}" for i in range(2) for old, _ in gguf_models.NORMS]:
            size = 64 if "self_attn" in name else 128
            add(name + ".weight", "BF16", [size], draw.randbytes(2 * size))
        header, offset = {"__metadata__": {"format": "pt"}}, 0
        for name, (entry, data) in tensors.items():
            header[name] = entry | {"data_offsets": [offset, offset + len(data)]}
            offset += len(data)
        text = json.dumps(header).encode()
        (self.path / "model.safetensors").write_bytes(
            struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))
        (self.path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": {}}))
        (self.path / "generation_config.json").write_text("{}")
        (self.path / "tokenizer_config.json").write_text("{}")
        (self.path / "tokenizer.json").write_text(json.dumps({
            "model": {"vocab": {f"v{i}": i for i in range(299)}, "merges": [["v", "1"], "v 2"]},
            "added_tokens": [{"id": 299, "content": "<|end|>"}]}))
        return {name: data for name, (_, data) in tensors.items()}

    def test_checkpoint_as_gguf(self):
        tensors = self.checkpoint()
        gguf_models.write_checkpoint(self.path, "NVFP4", self.path / "m.gguf")
        file = Gguf((self.path / "m.gguf").read_bytes())
        self.assertEqual(file.fields["qwen3moe.expert_count"], 3)
        self.assertEqual(file.fields["tokenizer.ggml.tokens"][298:], ["v298", "<|end|>"])
        self.assertEqual(file.fields["tokenizer.ggml.token_type"][298:], [1, 3])
        self.assertEqual(file.fields["tokenizer.ggml.merges"], ["v 1", "v 2"])
        kind, shape, _ = file.tensors["blk.1.ffn_down_exps.weight"]
        self.assertEqual((kind, shape), (40, [3, 128, 64]))
        size = 128 * 36
        name = "model.layers.1.mlp.experts.{}.down_proj.weight"
        for e in range(3):
            self.assertEqual(file.bytes("blk.1.ffn_down_exps.weight", 3 * size)[e * size:(e + 1) * size],
                             nvfp4_forms.ggml_blocks(tensors[name.format(e)], tensors[name.format(e) + "_scale"]))
        self.assertEqual(file.bytes("blk.1.ffn_down_exps.scale", 12),
                         b"".join(tensors[name.format(e) + "_scale_2"] for e in range(3)))
        self.assertEqual(file.bytes("token_embd.weight", 300 * 256), tensors["model.embed_tokens.weight"])
        norm = tensors["model.layers.0.self_attn.k_norm.weight"]
        self.assertEqual(file.bytes("blk.0.attn_k_norm.weight", 8), b"\0\0" + norm[:2] + b"\0\0" + norm[2:4])
        last = max(offset for _, _, offset in file.tensors.values())
        self.assertTrue(all(offset % 32 == 0 for _, _, offset in file.tensors.values()))
        self.assertGreater(len(file.data), file.start + last)

    def test_checkpoint_as_bf16(self):
        tensors = self.checkpoint()
        gguf_models.write_checkpoint(self.path, "BF16", self.path / "m.gguf")
        hf_models.write_bf16(self.path, self.path / "out")
        name = "model.layers.0.self_attn.q_proj.weight"
        want = nvfp4_forms.bf16_values(tensors[name], tensors[name + "_scale"], struct.unpack("<f", tensors[name + "_scale_2"])[0])
        file = Gguf((self.path / "m.gguf").read_bytes())
        self.assertEqual(file.bytes("blk.0.attn_q.weight", len(want)), want)
        self.assertNotIn("blk.0.attn_q.scale", file.tensors)
        made = SafetensorsFile(self.path / "out" / "model.safetensors")
        self.assertEqual((made.shape(name), made.bytes(name, "BF16")), ([128, 128], want))
        self.assertEqual(made.bytes("lm_head.weight", "BF16"), tensors["lm_head.weight"])
        self.assertNotIn("quantization_config", json.loads((self.path / "out" / "config.json").read_text()))

    def test_dummy_model(self):
        with mock.patch.object(dummy_weights, "POOL_BLOCKS", 64):
            gguf_models.write_dummy(CONFIG, "Q4_0", self.path / "m.gguf")
        file = Gguf((self.path / "m.gguf").read_bytes())
        self.assertEqual(file.tensors["blk.0.ffn_up_exps.weight"][:2], (2, [3, 64, 128]))
        blocks = file.bytes("blk.0.ffn_up_exps.weight", 3 * 64 * 4 * 18)
        self.assertEqual({blocks[i:i + 2] for i in range(0, len(blocks), 18)}, {struct.pack("<e", d) for d in (0.005, -0.005)})
        rows = [blocks[i:i + 72] for i in range(0, len(blocks), 72)]
        self.assertGreater(len(set(rows)), len(rows) // 4)
        for value in struct.unpack("<128f", file.bytes("blk.1.ffn_gate_inp.weight", 512)):
            self.assertTrue(2 ** -7 <= abs(value) < 2 ** -5, value)
        self.assertEqual(file.bytes("output_norm.weight", 512), struct.pack("<f", 1) * 128)

    def test_longer_contexts_have_dummy_weights(self):
        self.checkpoint()
        folder = self.path / "longer"
        folder.mkdir()
        self.assertEqual(cost_curves.with_context(self.path, 64, folder), (self.path, []))
        self.assertEqual(cost_curves.with_context(self.path, 65, folder), (folder, ["--load-format", "dummy"]))
        config = json.loads((folder / "config.json").read_text())
        self.assertEqual((config["max_position_embeddings"], config["num_experts"]), (65, 3))
        self.assertNotIn("quantization_config", config)

    def test_dummy_tokens(self):
        tokens = gguf_models.dummy_tokens(CONFIG)
        self.assertEqual((len(tokens), len(set(tokens))), (300, 300))
        self.assertTrue({"a", "Ġ", "Ċ", "ÿ"} < set(tokens))

    def test_rows_of_whole_blocks(self):
        self.assertEqual(gguf_file.tensor_bytes("Q4_0", [3, 2, 64]), 3 * 2 * 36)
        with self.assertRaises(ValueError):
            gguf_file.tensor_bytes("NVFP4", [64, 32])
        with self.assertRaises(ValueError):
            gguf_file.write(self.path / "x", {}, [("t", "F32", [4], lambda: [bytes(12)])])


class Answers(unittest.TestCase):
    def test_events_of_a_chunked_stream(self):
        payload = b'data: {"a": 1}\n\ndata: {"b": 2}\n\ndata: [DONE]\n\n'
        chunked = b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in (payload[:9], payload[9:])) + b"0\r\n\r\n"
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        stream = http_streams.Stream(0.0, [(1.0, head), (2.0, chunked[:20]), (3.0, chunked[20:])])
        self.assertEqual(http_streams.events(stream), [{"a": 1}, {"b": 2}])
        self.assertEqual(http_streams.token_times(stream), [2.0, 3.0])

    def test_refusals_are_errors(self):
        with self.assertRaisesRegex(RuntimeError, "no room"):
            http_streams.events(http_streams.Stream(0.0, [(1.0, b"HTTP/1.1 400 Bad Request\r\n\r\nno room")]))


class Figures(unittest.TestCase):
    ROUNDS = [("tessera", {"decode 1": 10.0, "prompt 512": 90.0}), ("llama.cpp Q4_0", {"decode 1": 5.0, "prompt 512": 100.0}),
              ("llama-bench Q4_0", {"decode 1": 50.0}), ("tessera", {"decode 1": 12.0, "prompt 512": 80.0}),
              ("vLLM BF16", {"decode 1": 6.0, "prompt 512": 20.0})]

    def test_best_rounds_against_the_better_peer(self):
        best = peers.best_of(self.ROUNDS)
        self.assertEqual(best["tessera"], {"decode 1": 12.0, "prompt 512": 90.0})
        table, rows = peers.report(SMALL, best)
        self.assertIn("| 1 stream | 12.0 | 5.00 | 50.0 | 6.00 | 2.00 |", table)
        self.assertIn("| prompt of 512 | 90.0 | 100 |  | 20.0 | 0.90 |", table)
        self.assertEqual([(row["value"], row["peer"], row["peer_value"]) for row in rows],
                         [(12.0, "vLLM BF16", 6.0), (90.0, "llama.cpp Q4_0", 100.0)])

    def test_rows_have_all_fields(self):
        row = results.row("b", "s", 1.0, "u", ceiling=4.0)
        self.assertEqual(list(row), ["bench", "shape", "value", "unit", "ceiling", "fraction", "peer", "peer_value", "date",
                                     "commit"])
        self.assertEqual(row["fraction"], 0.25)

    def test_pictures_are_svg_within_their_frame(self):
        xs = [1, 2, 4, 256]
        root = ET.fromstring(chart.line_chart("a < b", "x", xs, [("up", [1, 2, 30, 400]), ("flat", [3, 3, 3, 3.5])]))
        circles = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter("{http://www.w3.org/2000/svg}circle")]
        self.assertEqual(len(circles), 8)
        self.assertTrue(all(chart.LEFT <= x <= chart.WIDTH - chart.RIGHT and chart.TOP <= y <= chart.HEIGHT - chart.BOTTOM
                            for x, y in circles))

    def test_labels(self):
        self.assertEqual([chart.label(x) for x in (0, 0.25, 64, 32768, 131072, 2e6, 1234.5)],
                         ["0", "0.25", "64", "32768", "131k", "2M", "1.23k"])

    def test_tables(self):
        self.assertEqual(cost_curves.table("n", [1, 2048], [("t", [0.5, 12345.6])]),
                         "| n | t |\n|---|---|\n| 1 | 0.5 |\n| 2048 | 1.235e+04 |\n")


if __name__ == "__main__":
    unittest.main()
