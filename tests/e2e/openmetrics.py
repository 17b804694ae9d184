"""Reads files with the strict OpenMetrics parser and tells how much each holds; any fault ends it."""

import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families


def main(paths):
    for path in paths:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
        families = list(text_string_to_metric_families(text))
        samples = [s for family in families for s in family.samples]
        series = {(s.name, tuple(sorted(s.labels.items()))) for s in samples}
        if not samples or len(series) != len(samples):
            sys.exit(f"{path}: {len(samples)} samples of {len(series)} series")
        print(f"{path}: {len(families)} families, {len(samples)} samples")


main(sys.argv[1:])
