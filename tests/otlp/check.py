"""Spans and log records arrive at rotel, a collector, exactly as they were made. What it got it prints; that is read here."""

import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from collector import PATIENCE, Collector, free_port, listens, within

SEND, NGINX = sys.argv[1:3]
BATCH = 25


def value(text):
    kind, inner = re.fullmatch(r"(\w+)\((.*)\)", text).groups()
    if kind == "Slice":
        return [value(part) for part in inner.split(", ")]
    return {"Str": str, "Int": int, "Double": float, "Bool": lambda t: t == "true"}[kind](inner)


def spans(printed):
    """Every span that was printed whole, as the program that sent it says it."""
    # A record begins at the start of a line; the last of a life that was cut short may be half of one.
    for piece in re.split(r"^(?=Span #\d|ResourceSpans #|ResourceLog #|\S*\d{4}-\d\d-\d\dT)", printed, flags=re.M):
        if not piece.startswith("Span #"):
            continue
        said = dict(re.findall(r"^ {4}([A-Z][\w ]*?) *: (.*)$", piece, re.M))
        times = dict(re.findall(r"^(Start|End) time: (\d+)$", piece, re.M))
        body, _, rest = piece.partition("\nEvents:\n")
        if "-> agent_session.link.relation: Str(previous_run)" not in rest:
            continue
        assert said["Kind"] == "SPAN_KIND_INTERNAL", piece
        yield {
            "trace": said["Trace ID"], "span": said["ID"], "parent": said["Parent ID"], "name": said["Name"],
            "start": int(times["Start"]), "end": int(times["End"]),
            "attributes": {k: value(v) for k, v in re.findall(r"^ {5}-> ([\w.]+): (.*)$", body, re.M)},
        }


def records(printed):
    return re.findall(r"^ {5}-> log\.record\.uid: Str\((\w+)\)$", printed, re.M)


class Sender:
    """The program that sends, over one state folder."""

    def __init__(self, folder, env):
        self.state = folder / "state"
        self.said = folder / "said.jsonl"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")} | {
            "OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_BLRP_SCHEDULE_DELAY": "50",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": str(BATCH), "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE": str(BATCH),
        } | env

    def start(self, first, last):
        """Returns when all is kept that is to be sent; disks take their time for that."""
        with self.said.open("ab") as said:
            process = subprocess.Popen([SEND, self.state, str(first), str(last)], stdout=said, env=self.env)
        within("everything is kept", lambda: process.poll() is not None or first == last or self.has_said(last - 1))
        return process

    def has_said(self, n):
        return f'{{"record":"{n + 1:016x}"}}\n' in self.said.read_text()

    def send(self, first, last):
        assert self.start(first, last).wait(PATIENCE) == 0, "sending failed"

    def made(self):
        lines = [json.loads(line) for line in self.said.read_text().splitlines()]
        return {m["span"]: m for m in lines if "span" in m}, {m["record"] for m in lines if "record" in m}


def compare(collector, sender, repeats):
    """Everything is there with its content, at most so many of them more than once."""
    made, ids = sender.made()
    within("everything was printed", lambda: {s["span"] for s in spans(collector.printed())} >= made.keys()
           and set(records(collector.printed())) >= ids)
    printed = collector.printed()
    got = collections.defaultdict(list)
    for span in spans(printed):
        got[span["span"]].append(span)
    assert got.keys() == made.keys(), f"{len(got)} spans of {len(made)}"
    for id, copies in got.items():
        for copy in copies:
            assert copy == made[id], f"{copy}\nis not\n{made[id]}"
    again = sum(len(copies) - 1 for copies in got.values())
    logs = records(printed)
    assert set(logs) == ids, f"{len(set(logs))} log records of {len(ids)}"
    again_logs = len(logs) - len(ids)
    assert again <= repeats and again_logs <= repeats, f"{again} spans and {again_logs} records came again"
    return len(made), again


def plainly(folder):
    collector = Collector(folder)
    try:
        for protocol, port, packed in (("grpc", collector.grpc, "none"), ("http/protobuf", collector.http, "gzip")):
            below = folder / protocol.replace("/", "-")
            below.mkdir()
            collector.out.write_text("")
            sender = Sender(below, {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
                "OTEL_EXPORTER_OTLP_COMPRESSION": packed,
            })
            sender.send(0, 300)
            n, _ = compare(collector, sender, 0)
            print(f"{protocol}: {n} spans and as many log records arrived once, as they were made")
    finally:
        collector.kill()


def with_deaths(folder):
    """The collector dies ten times, each time with something on its way, and the sender three times, by signal 9."""
    collector = Collector(folder)
    sender = Sender(folder, {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.grpc}", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    })
    process = sender.start(0, 6000)
    try:
        for life in range(10):
            size = collector.out.stat().st_size
            within("something arrives", lambda: collector.out.stat().st_size > size)
            collector.kill()
            if life in (2, 5, 8):
                assert process.poll() is None, "there was nothing left to send"
                process.send_signal(signal.SIGKILL)
                process.wait()
                process = sender.start(0, 0)
            collector.start()
        assert process.wait(PATIENCE) == 0, "sending failed"
        # One request for each death can have arrived without anybody knowing.
        n, again = compare(collector, sender, 13 * BATCH)
        print(f"ten deaths of the collector, three of the exporter: {n} spans arrived, {again} of them again, all as they were made")
    finally:
        process.kill()
        process.wait()
        collector.kill()


CONF = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{}}
http {{
  access_log off; client_max_body_size 8m; client_body_buffer_size 8m;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  ssl_certificate {folder}/server.pem; ssl_certificate_key {folder}/server.key;
  ssl_client_certificate {folder}/ca.pem; ssl_verify_client on;
  map $http_x_api_key $denied {{ default 1; "s3cret" 0; }}
  server {{
    listen 127.0.0.1:{tls_http} ssl;
    if ($denied) {{ return 401; }}
    location / {{ proxy_pass http://127.0.0.1:{http}; }}
  }}
  server {{
    listen 127.0.0.1:{tls_grpc} ssl http2;
    if ($denied) {{ return 401; }}
    location / {{ grpc_pass grpc://127.0.0.1:{grpc}; }}
  }}
}}
"""


def through_a_proxy(folder):
    subprocess.run([SEND, "certificates", folder], check=True)
    collector = Collector(folder)
    ports = {"tls_http": free_port(), "tls_grpc": free_port()}
    conf = folder / "nginx.conf"
    conf.write_text(CONF.format(folder=folder, http=collector.http, grpc=collector.grpc, **ports))
    nginx = subprocess.Popen([NGINX, "-p", folder, "-e", folder / "nginx.log", "-c", conf])
    try:
        within("nginx listens", lambda: all(listens(port) for port in ports.values()))
        for protocol, port in (("grpc", ports["tls_grpc"]), ("http/protobuf", ports["tls_http"])):
            below = folder / protocol.replace("/", "-")
            below.mkdir()
            collector.out.write_text("")
            sender = Sender(below, {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"https://localhost:{port}", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
                "OTEL_EXPORTER_OTLP_CERTIFICATE": f"{folder}/ca.pem",
                "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": f"{folder}/client.pem",
                "OTEL_EXPORTER_OTLP_CLIENT_KEY": f"{folder}/client.key",
            })
            # The wrong key first: everything waits, nothing is lost.
            sender.env["OTEL_EXPORTER_OTLP_HEADERS"] = "x-api-key=wrong"
            process = sender.start(0, 120)
            time.sleep(1)
            assert process.poll() is None, "it does not wait"
            process.kill()
            process.wait()
            assert not list(spans(collector.printed())), "the proxy let it through"
            sender.env["OTEL_EXPORTER_OTLP_HEADERS"] = "x-api-key=s3cret"
            sender.send(0, 0)
            n, _ = compare(collector, sender, 0)
            print(f"{protocol} through nginx with TLS, a certificate and a header: {n} spans arrived once")
    finally:
        nginx.terminate()
        nginx.wait()
        collector.kill()


with tempfile.TemporaryDirectory() as work:
    for case in (plainly, with_deaths, through_a_proxy):
        folder = pathlib.Path(work) / case.__name__
        folder.mkdir()
        case(folder)
