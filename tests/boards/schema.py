#!/usr/bin/env python3
"""Checks the boards against Grafana's published schema, the types of @grafana/schema, with the TypeScript compiler.

Argument: a folder with node_modules that hold @grafana/schema and typescript. That package has no JSON schema: boards are
written into a source file as literals, for which the compiler refuses what the types do not know, options and field
settings of each kind of panel included. Then it must refuse a board with a misspelt option.
"""

import pathlib
import subprocess
import sys
import tempfile

DASHBOARDS = pathlib.Path(__file__).resolve().parent.parent.parent / "grafana/dashboards"
KINDS = {"table": "table", "timeseries": "timeseries", "state-timeline": "statetimeline", "stat": "stat", "text": "text"}
# Words instead of enumerations' members; rows are a type of their own.
TYPES = """
type Plain<T> = T extends string ? `${T}` : T extends number | boolean | null | undefined ? T
  : T extends (infer U)[] ? Plain<U>[] : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
type Fields<F> = { defaults: Omit<g.FieldConfig, 'custom'> & { custom?: Partial<F> }; overrides: g.FieldConfigSource['overrides'] };
type Of<N, O, F> = Plain<Omit<g.Panel, 'type' | 'options' | 'fieldConfig'>>
  & { type: N; options: Plain<Partial<O>>; fieldConfig: Plain<Fields<F>> };
type Board = Plain<Omit<g.Dashboard, 'panels'>> & { panels: (Panels | Plain<g.RowPanel>)[] };
"""


def source(boards):
    """The boards as a program."""
    lines = ["import type * as g from '@grafana/schema';"]
    for module in KINDS.values():
        lines.append(f"import type * as {module} from '@grafana/schema/dist/types/raw/composable/{module}/panelcfg/x/types.gen';")
    lines.append(TYPES)
    # Not every kind has settings for its fields.
    settings = {"stat": "{}", "text": "{}"}
    of = [f"Of<'{kind}', {module}.Options, {settings.get(module, f'{module}.FieldConfig')}>" for kind, module in KINDS.items()]
    lines.append(f"type Panels = {' | '.join(of)};")
    lines += [f"export const board{n}: Board = {text};" for n, text in enumerate(boards)]
    return "\n".join(lines)


def compiled(folder, boards):
    """What the compiler says."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        path = pathlib.Path(work) / "boards.ts"
        path.write_text(source(boards))
        command = [str(folder / "node_modules/.bin/tsc"), "--noEmit", "--strict", "--skipLibCheck"]
        command += ["--module", "es2020", "--moduleResolution", "node", "--target", "es2020", str(path)]
        return subprocess.run(command, capture_output=True, text=True)


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    boards = [path.read_text() for path in sorted(DASHBOARDS.glob("*.json"))]
    result = compiled(folder, boards)
    if result.returncode:
        print(result.stdout[:4000] + result.stderr[:4000], file=sys.stderr)
        return 1
    for right, wrong in (('"stacking"', '"stackings"'), ('"cellHeight"', '"cellHeights"'), ('"schemaVersion"', '"schemasVersion"')):
        one = next(text for text in boards if right in text)
        if "TS" not in compiled(folder, [one.replace(right, wrong, 1)]).stdout:
            print(f"schema.py: the compiler takes {wrong}", file=sys.stderr)
            return 1
    print(f"boards: {len(boards)} are as Grafana's schema has them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
