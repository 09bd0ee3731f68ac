#!/usr/bin/env python3
"""Every query of the Grafana dashboard and of the Prometheus rules, against a real Prometheus that scrapes real servers.

Usage: prometheus_test.py SOURCE_DIR BUILD_DIR

Starts two servers (the bundled model on the CPU, and the null device), loads both, lets a Prometheus with the rules of
deploy/prometheus scrape them, and runs every expression through its HTTP API. All must succeed; those that the load
must move have to give numbers. Exits with 77 (skipped) where Prometheus or the bundled model is missing.
"""
import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

SOURCE, BUILD = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
LOAD_SECONDS = 12
RATE_WINDOW = "8s"
SKIPPED = 77

# Expressions that may be empty or NaN under this load, as nothing went wrong.
MAY_BE_EMPTY = ()

failures = []


def check(condition, message):
    if not condition:
        failures.append(message)
        print(f"FAILED: {message}", flush=True)


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(SKIPPED)


def find_program(name):
    for folder in (BUILD / "tools/usr/bin", SOURCE / "build/tools/usr/bin"):
        if (folder / name).exists():
            return str(folder / name)
    return shutil.which(name)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def stop(process):
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()


def start(stack, command, log):
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    stack.callback(stop, process)
    return process


def tessera(address, *words, **options):
    return subprocess.run([BUILD / "tessera", words[0], "--address", address, *words[1:]], check=False,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options).returncode


class Prometheus:
    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}/api/v1/"

    def get(self, path, **parameters):
        url = self.url + path + "?" + urllib.parse.urlencode(parameters, doseq=True)
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            return json.loads(error.read() or b"{}")

    def query(self, expr):
        return self.get("query", query=expr)


def values_of(answer):
    return [float(sample["value"][1]) for sample in answer["data"]["result"]]


def dashboard_queries():
    """(panel title, expression) of every target."""
    dashboard = json.loads((SOURCE / "deploy/grafana/tessera.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def rule_queries():
    """(name, expression, is an alert) of every rule. The YAML is read by Prometheus itself, so that no other reader is
    needed here."""
    for group in prometheus.get("rules")["data"]["groups"]:
        for rule in group["rules"]:
            yield rule["name"], rule["query"], rule["type"] == "alerting", rule.get("health"), rule.get("lastError")


def give_load(addresses):
    """Streams with shared prefixes and cancellations, embeddings, and calls that are refused."""
    loads = [subprocess.Popen([BUILD / "bench/load_generator", "--address", address, "--concurrency", "6", "--duration",
                               f"{LOAD_SECONDS}s", "--prompt-tokens", "16:64", "--output-tokens", "4:32",
                               "--shared-prefix", "0.5", "--cancel", "0.1", "--json"],
                              stdout=subprocess.PIPE, text=True) for address in addresses]
    end = time.time() + LOAD_SECONDS
    while time.time() < end:
        for address in addresses:
            check(tessera(address, "embed", "a lantern", "a bridge") == 0, f"embed at {address}")
            check(tessera(address, "generate", "--temperature", "9", "x") == 1, f"{address} took temperature 9")
        time.sleep(0.3)
    for load in loads:
        report = json.loads(load.communicate(timeout=120)[0])
        check(set(report["outcomes"]) <= {"ok", "cancelled"}, f"outcomes of the load: {report['outcomes']}")
        check(report["output_tokens"] > 0, "the load generated nothing")


prometheus_program, promtool = find_program("prometheus"), find_program("promtool")
if not prometheus_program or not promtool:
    skip("Prometheus is not here; deploy/install-packages test brings it")
if not (SOURCE / "deploy/model/config.json").exists():
    skip("the bundled model is not in deploy/model")

for arguments in (["check", "config", "deploy/prometheus/prometheus.yml"],
                  ["check", "rules", "deploy/prometheus/rules.yml"],
                  ["test", "rules", "deploy/prometheus/rules_test.yml"]):
    result = subprocess.run([promtool, *arguments], cwd=SOURCE, capture_output=True, text=True)
    check(result.returncode == 0, f"promtool {' '.join(arguments)}: {result.stdout}{result.stderr}")

with contextlib.ExitStack() as stack:
    scratch = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    log_path = scratch / "log"
    log = stack.enter_context(open(log_path, "w"))
    addresses, instances = [], []
    for device in ("cpu", "null"):
        address, metrics = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        start(stack, [BUILD / "tessera-server", "--model", SOURCE / "deploy/model", "--device", device, "--listen",
                      address, "--metrics", metrics], log)
        addresses.append(address)
        instances.append(metrics)
    for address in addresses:
        if tessera(address, "health", "--wait", "60s") != 0:
            print(log_path.read_text())
            sys.exit(f"FAILED: the server at {address} did not start")

    rules = scratch / "rules.yml"
    rules.write_text((SOURCE / "deploy/prometheus/rules.yml").read_text())
    (scratch / "prometheus.yml").write_text(
        f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{rules}]\n"
        f"scrape_configs: [{{job_name: tessera, static_configs: [{{targets: {json.dumps(instances)}}}]}}]\n")
    port = free_port()
    start(stack, [prometheus_program, f"--config.file={scratch}/prometheus.yml", f"--storage.tsdb.path={scratch}/data",
                  f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"], log)
    prometheus = Prometheus(port)
    deadline = time.time() + 30
    while time.time() < deadline:
        with contextlib.suppress(OSError):
            if values_of(prometheus.query('sum(up{job="tessera"})')) == [len(instances)]:
                break
        time.sleep(0.2)
    else:
        print(log_path.read_text())
        sys.exit("FAILED: Prometheus did not scrape both servers")

    give_load(addresses)

    count = 0
    for instance in instances:
        for title, template in dashboard_queries():
            expr = template.replace("$instance", re.escape(instance).replace("\\", "\\\\"))
            expr = expr.replace("$__rate_interval", RATE_WINDOW)
            check("$" not in expr, f"{title}: a variable is left in {expr}")
            answer = prometheus.query(expr)
            count += 1
            check(answer.get("status") == "success", f"{title}: {expr}: {answer.get('error')}")
            if answer.get("status") != "success" or template in MAY_BE_EMPTY:
                continue
            values = values_of(answer)
            check(values and not any(math.isnan(value) for value in values),
                  f"{title} of {instance}: no number: {expr} gave {values}")
            now = time.time()
            ranged = prometheus.get("query_range", query=expr, start=now - 10, end=now, step=1)
            check(ranged.get("status") == "success", f"{title}: as a range: {ranged.get('error')}")
    for name, expr, is_alert, health, error in rule_queries():
        count += 1
        check(health == "ok", f"rule {name}: {health}: {error}")
        answer = prometheus.query(expr)
        check(answer.get("status") == "success", f"rule {name}: {answer.get('error')}")
        if not is_alert and answer.get("status") == "success":
            values = values_of(answer)
            check(values and not any(math.isnan(value) for value in values), f"rule {name}: no number: {values}")
            recorded = values_of(prometheus.query(name))
            check(recorded, f"rule {name} recorded nothing")
    firing = [alert["labels"] for alert in prometheus.get("alerts")["data"]["alerts"] if alert["state"] == "firing"]
    check(not firing, f"alerts fire on healthy servers: {firing}")
    found = prometheus.get("label/instance/values", **{"match[]": "tessera_build_info"})["data"]
    check(sorted(found) == sorted(instances), f"the dashboard's server variable would list {found}")
    if failures:
        print("---- last lines of the servers and of Prometheus\n" + log_path.read_text()[-3000:])

print(f"{count} queries run, {len(failures)} failures")
sys.exit(1 if failures else 0)
