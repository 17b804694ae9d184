"""Rules for docker-compose.yml and what it mounts. Arguments: what `docker-compose config` made of it, the same with
alerts/compose/linux.yml, and a folder for what the caller goes on with: the exporter's flags, variables and health check,
and the files its image is built from."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path.cwd()
# A checkout may lack all boards, but not some of what is mounted of them.
BOARDS = ROOT / "grafana"
ALONE = {"servers": "host", "exporter-servers": "service:exporter"}
problems = []


def say(condition, problem):
    if not condition:
        problems.append(problem)


def read(path):
    return yaml.safe_load(Path(path).read_text())


def short(mount):
    """Source, target and mode of a mount. The first docker-compose prints texts, the second tables."""
    if isinstance(mount, dict):
        return mount["source"], mount["target"], "ro" if mount.get("read_only") else "rw"
    parts = mount.split(":")
    return parts[0], parts[1], parts[2] if len(parts) > 2 else "rw"


def opened(port):
    """`address:published:inside` of a port, likewise."""
    if isinstance(port, dict):
        return f"{port.get('host_ip', '')}:{port.get('published', '')}:{port['target']}"
    return str(port).removesuffix("/tcp")


def pinned(image, where):
    say(re.search(r":v?\d+(\.\d+)+(-[\w-]+)?$", image), f"{where}: {image} names no version")


def images_of(dockerfile):
    """What a Dockerfile takes from elsewhere; its own stages have no version."""
    text = dockerfile.read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.M))
    taken = re.findall(r"^FROM (\S+)|--from=(\S+)", text, re.M)
    return [name for pair in taken for name in pair if name and name not in stages]


def check_service(name, service):
    pinned(service["image"], name)
    if "build" in service:
        build = service["build"]
        build = {"context": build} if isinstance(build, str) else build
        dockerfile = Path(build["context"]) / build.get("dockerfile", "Dockerfile")
        say(dockerfile.is_file(), f"{name}: there is no {dockerfile}")
        for image in images_of(dockerfile) if dockerfile.is_file() else []:
            pinned(image, dockerfile.name)
    for port in service.get("ports", []):
        say(opened(port).startswith("127.0.0.1:"), f"{name}: port {port} is open to other machines")
    say(service.get("cap_drop") == ["ALL"], f"{name}: keeps capabilities")
    say(service.get("security_opt") == ["no-new-privileges:true"], f"{name}: may gain privileges")
    say(not service.get("privileged"), f"{name}: is privileged")
    # What ends by itself needs neither.
    if name != "tempo-volume":
        say(service.get("restart") == "unless-stopped", f"{name}: is not started again")
        own = name == "exporter" and "HEALTHCHECK" in (ROOT / "Dockerfile").read_text()
        say(own or service.get("healthcheck", {}).get("test"), f"{name}: has no health check")
    say(service.get("network_mode") == ALONE.get(name, "none" if name == "tempo-volume" else None), f"{name}: its network")
    for mount in service.get("volumes", []):
        source, _, mode = short(mount)
        if not source.startswith("/"):
            continue
        say(mode == "ro", f"{name}: {mount} can be written")
        say(source != "/home/somebody", f"{name}: the whole home folder is mounted")
        if not source.startswith("/home/somebody/"):
            if not Path(source).is_relative_to(BOARDS) or BOARDS.exists():
                say(Path(source).exists(), f"{name}: there is no {source}")
            say(Path(source).is_relative_to(ROOT), f"{name}: {source} is not of this repository")


def check_passwords(services):
    for name, service in services.items():
        for key in service.get("environment", {}):
            say(not re.search("PASSWORD|SECRET|TOKEN|KEY", key), f"{name}: {key} is no secret in here")
    wanted = {
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true",
        "GF_AUTH_DISABLE_LOGIN_FORM": "true",
        "GF_AUTH_BASIC_ENABLED": "false",
        "GF_USERS_ALLOW_SIGN_UP": "false",
        "GF_SERVER_ENFORCE_DOMAIN": "true",
    }
    given = services["grafana"]["environment"]
    for key, value in wanted.items():
        say(given.get(key) == value, f"grafana: {key} is not {value}")


def check_agents(exporter):
    mounts = {target: (source, mode) for source, target, mode in map(short, exporter["volumes"])}
    for folder in (".claude", ".codex"):
        wanted = (f"/home/somebody/{folder}", "ro")
        say(mounts.get(f"/agents/{folder}") == wanted, f"exporter: {folder} is not there to be read")
    say("--home=/agents" in exporter["command"], "exporter: looks for agents elsewhere than they are mounted")
    state = next((flag.split("=")[1] for flag in exporter["command"] if flag.startswith("--state-dir=")), "")
    volume = str(Path(state).parent)
    say(mounts.get(volume, ("/", ""))[0] == "exporter", "exporter: its state is on no volume")
    say(f"\nVOLUME {volume}\n" in (ROOT / "Dockerfile").read_text(), "Dockerfile: the volume is another folder")
    version = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    say(exporter["image"] == f"agent-session-exporter:{version}", "exporter: its image has another version than Cargo.toml")
    say(exporter["user"] == "1000:1000" and exporter["read_only"], "exporter: runs as root or writes to its image")


def check_prometheus(services):
    """The tested configuration but for names, and every name is a service."""
    say("--enable-feature=exemplar-storage" in services["prometheus"]["command"], "prometheus: keeps no exemplars")
    ours, theirs = read("alerts/compose/prometheus.yml"), read("alerts/prometheus.yml")
    ours["rule_files"] = [file.removeprefix("../") for file in ours["rule_files"]]
    flat = json.dumps(ours).replace("exporter:10077", "127.0.0.1:10077").replace("alertmanager:9093", "127.0.0.1:9093")
    say(json.loads(flat) == theirs, "alerts/compose/prometheus.yml differs from alerts/prometheus.yml by more than names")
    mounts = {target: source for source, target, _ in map(short, services["prometheus"]["volumes"])}
    file = next(flag.split("=")[1] for flag in services["prometheus"]["command"] if flag.startswith("--config.file="))
    inside = Path(file).relative_to("/etc/prometheus/alerts")
    say((Path(mounts["/etc/prometheus/alerts"]) / inside).is_file(), f"prometheus: there is no {file}")


def check_alertmanager():
    ours, theirs = read("alerts/compose/alertmanager.yml"), read("alerts/alertmanager.yml")
    same = ours["inhibit_rules"] == theirs["inhibit_rules"]
    say(same, "alerts/compose/alertmanager.yml inhibits otherwise than the example")
    for key in ("group_by", "group_wait", "group_interval", "repeat_interval"):
        say(ours["route"][key] == theirs["route"][key], f"alerts/compose/alertmanager.yml: {key} differs from the example")
    say(ours["receivers"] == [{"name": "nobody"}], "alerts/compose/alertmanager.yml tells somebody")
    say("_file" not in json.dumps(ours), "alerts/compose/alertmanager.yml needs files that nobody has")


def check_traces(services):
    collector, tempo = read("alerts/compose/collector.yml"), read("alerts/compose/tempo.yml")
    for name, pipeline in collector["service"]["pipelines"].items():
        for kind in ("receivers", "processors", "exporters"):
            for part in pipeline[kind]:
                say(part in collector[kind], f"collector: {name} names {part}, which there is not")
    for part in collector["service"]["extensions"]:
        say(part in collector["extensions"], f"collector: there is no extension {part}")
    grpc = tempo["distributor"]["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]
    port = grpc.rsplit(":", 1)[1]
    say(collector["exporters"]["otlp"]["endpoint"] == f"tempo:{port}", "collector: sends where Tempo does not listen")
    for kind, endpoint in collector["receivers"]["otlp"]["protocols"].items():
        port = endpoint["endpoint"].rsplit(":", 1)[1]
        say(f"127.0.0.1:{port}:{port}" in map(opened, services["collector"]["ports"]), f"collector: {kind} has no port")
    health = collector["extensions"]["health_check"]["endpoint"]
    asked = services["collector"]["healthcheck"]["test"]
    say(any(health in word for word in asked), "collector: is asked elsewhere for its health")
    source = read("alerts/compose/tempo-datasource.yml")["datasources"][0]
    say(source["url"] == "${TEMPO_URL}", "grafana: the address of Tempo is not from its variable")
    url = f"http://tempo:{tempo['server']['http_listen_port']}"
    say(services["grafana"]["environment"]["TEMPO_URL"] == url, "grafana: another port than Tempo's")
    # A run as old as the oldest file that is read is found.
    example = (ROOT / "agent-session-exporter.example.toml").read_text()
    days = int(re.search(r'^#history_max_age = "(\d+)d"$', example, re.M)[1])
    for where, slack in (
        ("storage.trace.wal.ingestion_time_range_slack", tempo["storage"]["trace"]["wal"]["ingestion_time_range_slack"]),
        ("query_frontend.search.query_ingesters_until", tempo["query_frontend"]["search"]["query_ingesters_until"]),
    ):
        say(int(slack.removesuffix("h")) > 24 * days, f"tempo: {where} is too short for a run of {days} days")
    mounts = {target: source for source, target, _ in map(short, services["tempo"]["volumes"])}
    for path in (tempo["storage"]["trace"]["wal"]["path"], tempo["storage"]["trace"]["local"]["path"]):
        say(mounts.get(str(Path(path).parent)) == "tempo", f"tempo: {path} is on no volume")


def check_relays(services):
    ports = services["servers"]["environment"]["PORTS"].split()
    say(services["exporter-servers"]["environment"]["PORTS"].split() == ports, "linux.yml: the relays differ")
    text = (ROOT / "README.md").read_text()
    table = text[text.index("<!-- begin:sources -->") : text.index("<!-- end:sources -->")]
    for port in re.findall(r"http://127\.0\.0\.1:(\d+)", table):
        say(port in ports, f"linux.yml: no relay for port {port}, where a source looks")


def take_context(folder):
    """Copies what .dockerignore lets through, of the files git knows."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().split() if not line.startswith("#")]
    wanted = tuple(line[1:] for line in lines if line.startswith("!"))
    known = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.splitlines()
    for name in known:
        if name in wanted or name.startswith(tuple(f"{w}/" for w in wanted)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, folder / name)
    say((folder / "src/main.rs").is_file(), ".dockerignore: the image lacks the sources")
    for source in folder.glob("src/**/*.rs"):
        for inside in re.findall(r'include_(?:str|bytes)!\((?:\s*concat!\()?\s*"([^"]+)"', source.read_text()):
            there = (source.parent / inside).resolve().exists()
            say(there, f".dockerignore: {source.relative_to(folder)} includes {inside}")


def main():
    plain, linux = read(sys.argv[1])["services"], read(sys.argv[2])["services"]
    work = Path(sys.argv[3])
    for name, service in linux.items():
        check_service(name, service)
    say(plain["exporter"].get("pid") is None, "exporter: process ids of a virtual machine would mislead it")
    say(linux["exporter"].get("pid") == "host", "linux.yml: the exporter does not see processes")
    say(linux.keys() - plain.keys() == ALONE.keys(), "linux.yml: adds other services than the relays")
    check_passwords(linux)
    check_agents(plain["exporter"])
    check_prometheus(plain)
    check_alertmanager()
    check_traces(plain)
    check_relays(linux)
    (work / "context").mkdir()
    take_context(work / "context")

    exporter = plain["exporter"]
    health = re.search(r"^HEALTHCHECK .*\\\n\s+CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.M)
    (work / "flags").write_text("\n".join(exporter["command"]) + "\n")
    (work / "variables").write_text("".join(f"{key}={value}\n" for key, value in exporter["environment"].items()))
    (work / "health").write_text("\n".join(json.loads(health[1])) + "\n")
    for problem in problems:
        print(f"compose: {problem}", file=sys.stderr)
    if not problems:
        print(f"compose: {len(linux)} services keep the rules")
    return 1 if problems else 0


sys.exit(main())
