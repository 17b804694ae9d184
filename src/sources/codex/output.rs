//! What the harness itself writes around a tool's result: exit codes in four formats, refusals, interrupts; and
//! how many lines a patch changes. Only the program's own words count, never what a command printed.

use std::borrow::Cow;

use super::wire::{Change, OutputForm, OutputMetadata, Raw, json, object, read, shape, text, word};

/// How far into an output the program's own words are looked for.
const HEAD: usize = 400;

/// What an output says about its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// The command or tool came to its end with this exit code.
    Exit(i32),
    /// The command goes on in this process.
    Running(u64),
    /// The call was ended by an interrupt.
    Interrupted,
    /// The call was refused.
    Denied,
    /// The harness could not do it.
    Failed,
    /// Nothing beyond that the call is over.
    Over,
}

/// An output, apart from the header that changes with every call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Output<'a> {
    pub(super) said: Said,
    pub(super) body: Cow<'a, str>,
}

/// Reads an output in any of the formats.
pub(super) fn parse(whole: &str) -> Output<'_> {
    if let Some(found) = json_form(whole) {
        return found;
    }
    if let Some(found) = header_form(whole) {
        return found;
    }
    Output { said: own_words(whole), body: Cow::Borrowed(whole) }
}

/// `{"output":…,"metadata":{"exit_code":N}}`: up to 0.47, patches up to 0.77.
fn json_form(whole: &str) -> Option<Output<'_>> {
    if !whole.starts_with("{\"output\"") {
        return None;
    }
    let form: OutputForm<'_> = shape(json(whole))?;
    let metadata: OutputMetadata<'_> = object(form.metadata);
    Some(Output { said: Said::Exit(read(metadata.exit_code)?), body: word(form.output) })
}

/// `Exit code: N` (0.77 on) and `Chunk ID: …` with `Process …` (unified exec), each followed by `Output:`.
fn header_form(whole: &str) -> Option<Output<'_>> {
    // Some versions repeat the command, which may have lines of its own, before the header.
    let mut rest = match whole.strip_prefix("Command: ") {
        Some(after) => &after[after.find("\nChunk ID: ")? + 1..],
        None => whole,
    };
    let mut said = None;
    loop {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        if let Some(n) = line.strip_prefix("Exit code: ").or(line.strip_prefix("Process exited with code ")) {
            said = Some(Said::Exit(n.trim().parse().ok()?));
        } else if let Some(n) = line.strip_prefix("Process running with session ID ") {
            said = Some(Said::Running(n.trim().parse().ok()?));
        } else if said.is_none() && line.starts_with("aborted by user") {
            said = Some(Said::Interrupted);
        } else if line == "Output:" {
            return Some(Output { said: said.unwrap_or(Said::Over), body: Cow::Borrowed(after) });
        } else if ![
            "Chunk ID: ",
            "Wall time: ",
            "Wall time ",
            "Original token count: ",
            "Total output lines: ",
        ]
        .iter()
        .any(|known| line.starts_with(known))
        {
            break;
        }
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    said.map(|said| Output { said, body: Cow::Borrowed(rest) })
}

/// Sentences of the harness where a call did not run, as recorded.
fn own_words(whole: &str) -> Said {
    let mut end = whole.len().min(HEAD);
    while !whole.is_char_boundary(end) {
        end -= 1;
    }
    let head = &whole[..end];
    let refused = head.contains("rejected by user")
        && ["exec_command failed", "exec command rejected", "patch rejected", "apply_patch", "shell"]
            .iter()
            .any(|own| head.starts_with(own));
    if refused || head.starts_with("approval policy is ") {
        return Said::Denied;
    }
    let failed = [
        "exec_command failed: ",
        "write_stdin failed: ",
        "apply_patch verification failed: ",
        "unsupported call: ",
        "unsupported custom tool call: ",
        "failed to parse function arguments",
        "execution error: ",
        "Script failed",
    ];
    if failed.iter().any(|own| head.starts_with(own)) { Said::Failed } else { Said::Over }
}

/// Changed lines of a set of changes; a file that appears, goes or is renamed is at least one.
pub(super) fn changed_lines<'a>(changes: impl Iterator<Item = &'a Change<'a>>) -> u32 {
    changes.fold(0, |sum: u32, change| sum.saturating_add(change_lines(change)))
}

fn change_lines(change: &Change<'_>) -> u32 {
    let of_diff = |diff: Raw<'_>, moved: bool| {
        let lines = text(diff).map_or(0, |d| signed_lines(&d));
        if moved { lines.max(1) } else { lines }
    };
    let of_content = |content: Raw<'_>| text(content).map_or(1, |c| lines(&c)).max(1);
    let inner = |raw: Raw<'_>| -> u32 {
        let nested: Change<'_> = object(raw);
        if nested.unified_diff.is_some() {
            of_diff(nested.unified_diff, nested.move_path.is_some())
        } else {
            of_content(nested.content)
        }
    };
    match word(change.kind).as_ref() {
        "add" | "delete" => of_content(change.content),
        "update" => of_diff(change.unified_diff, change.move_path.is_some()),
        _ => change.add.or(change.delete).or(change.update).map_or(0, |raw| inner(Some(raw))),
    }
}

/// Lines of a unified diff or of a patch's hunks that add or remove.
fn signed_lines(diff: &str) -> u32 {
    u32::try_from(diff.lines().filter(|l| l.starts_with(['+', '-'])).count()).unwrap_or(u32::MAX)
}

fn lines(content: &str) -> u32 {
    u32::try_from(content.lines().count()).unwrap_or(u32::MAX)
}

/// A patch in the text form that `apply_patch` takes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Patch {
    /// The files it names, sorted.
    pub(super) paths: Vec<String>,
    /// Changed lines, at least one for each file that appears, goes or is renamed.
    pub(super) lines: u32,
}

/// Reads a patch; `None` where the text is none.
pub(super) fn patch(whole: &str) -> Option<Patch> {
    let from = whole.find("*** Begin Patch")?;
    let mut paths = Vec::new();
    let mut sum = 0u32;
    let mut file = (0u32, 0u32);
    for line in whole[from..].lines() {
        let heading = |what: &str| line.strip_prefix(what).map(|p| p.trim().to_owned());
        if let Some(path) = heading("*** Add File: ").or_else(|| heading("*** Delete File: ")) {
            sum = sum.saturating_add(file.0.max(file.1));
            file = (0, 1);
            paths.push(path);
        } else if let Some(path) = heading("*** Update File: ") {
            sum = sum.saturating_add(file.0.max(file.1));
            file = (0, 0);
            paths.push(path);
        } else if line.starts_with("*** Move to: ") {
            file.1 = 1;
        } else if line.starts_with(['+', '-']) {
            file.0 = file.0.saturating_add(1);
        }
    }
    paths.sort();
    Some(Patch { paths, lines: sum.saturating_add(file.0.max(file.1)) })
}

/// The command line of a call: `bash -lc "…"` is looked into, other argument vectors are joined.
pub(super) fn command_text(raw: Raw<'_>) -> Option<String> {
    if let Some(line) = text(raw) {
        return Some(unwrap_line(&line).into_owned());
    }
    let words: Vec<String> = read(raw)?;
    let shell = words.first().is_some_and(|w| is_shell(w));
    match words.as_slice() {
        [_, option, script, ..] if shell && is_script_option(option) => Some(script.clone()),
        _ => Some(words.join(" ")),
    }
}

/// `/bin/bash -lc '…'` as one string, the way the exec stream shows commands.
fn unwrap_line(line: &str) -> Cow<'_, str> {
    let mut parts = line.splitn(3, ' ');
    let (Some(shell), Some(option), Some(script)) = (parts.next(), parts.next(), parts.next()) else {
        return Cow::Borrowed(line);
    };
    if !is_shell(shell) || !is_script_option(option) {
        return Cow::Borrowed(line);
    }
    if let Some(inner) = script.strip_prefix('\'').and_then(|s| s.strip_suffix('\'')) {
        return Cow::Owned(inner.replace("'\\''", "'"));
    }
    if let Some(inner) = script.strip_prefix('"').and_then(|s| s.strip_suffix('"')) {
        return Cow::Owned(inner.replace("\\\"", "\""));
    }
    Cow::Borrowed(script)
}

fn is_shell(word: &str) -> bool {
    matches!(word.rsplit('/').next(), Some("bash" | "sh" | "zsh" | "dash"))
}

fn is_script_option(word: &str) -> bool {
    matches!(word, "-c" | "-lc" | "-ic" | "-lic")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_in_every_recorded_format() {
        for (whole, said, body) in [
            (
                "{\"output\":\"a\\nb\",\"metadata\":{\"exit_code\":2,\"duration_seconds\":0.0}}",
                Said::Exit(2),
                "a\nb",
            ),
            ("Exit code: 0\nWall time: 0.1 seconds\nOutput:\nok\n", Said::Exit(0), "ok\n"),
            (
                "Chunk ID: c6dc9f\nWall time: 0.0968 seconds\nProcess exited with code 1\nOriginal token count: 48\nOutput:\nx",
                Said::Exit(1),
                "x",
            ),
            (
                "Command: /bin/bash -lc 'cat <<E\nx\nE'\nChunk ID: 1\nWall time: 0.0 seconds\nProcess exited with code 0\nOriginal token count: 1\nOutput:\n",
                Said::Exit(0),
                "",
            ),
            (
                "Chunk ID: 9031b9\nWall time: 2.0016 seconds\nProcess running with session ID 45181\nOriginal token count: 6\nOutput:\ntick",
                Said::Running(45181),
                "tick",
            ),
            ("Wall time: 2.3 seconds\naborted by user", Said::Interrupted, ""),
            ("aborted by user after 2.2s", Said::Interrupted, ""),
            ("Wall time: 0.0028 seconds\nOutput:", Said::Over, ""),
        ] {
            assert_eq!(parse(whole), Output { said, body: Cow::Borrowed(body) }, "{whole}");
        }
    }

    #[test]
    fn refusals_and_failures_are_the_programs_own_words() {
        let said = |whole: &str| parse(whole).said;
        assert_eq!(
            said("exec_command failed: CreateProcess { message: \"Rejected(\\\"rejected by user\\\")\" }"),
            Said::Denied
        );
        assert_eq!(said("approval policy is Never; reject command — you cannot ask"), Said::Denied);
        assert_eq!(said("write_stdin failed: Unknown process id 45181"), Said::Failed);
        assert_eq!(said("apply_patch verification failed: Failed to find expected lines"), Said::Failed);
        assert_eq!(said("Plan updated"), Said::Over);
    }

    #[test]
    fn a_command_cannot_print_its_own_exit_code() {
        let said = |whole: &str| parse(whole).said;
        assert_eq!(
            said(
                "Chunk ID: 1\nWall time: 0 seconds\nProcess exited with code 1\nOutput:\nProcess exited with code 0\n"
            ),
            Said::Exit(1)
        );
        assert_eq!(said("Wall time: 0 seconds\nOutput:\nExit code: 0\n"), Said::Over);
        assert_eq!(said("the log says\nExit code: 0\n"), Said::Over);
        assert_eq!(said("Process exited with code ten\n"), Said::Over);
    }

    #[test]
    fn changed_lines_of_a_patch() {
        let of = |whole: &str| patch(whole).map(|p| (p.lines, p.paths.len()));
        let update =
            "*** Begin Patch\n*** Update File: calc.py\n@@\n def add(a, b):\n-    a\n+    b\n*** End Patch\n";
        assert_eq!(of(update), Some((2, 1)));
        assert_eq!(
            of("*** Begin Patch\n*** Delete File: a\n*** Add File: b\n+x\n+y\n*** End Patch"),
            Some((3, 2))
        );
        assert_eq!(of("*** Begin Patch\n*** Update File: a\n*** Move to: b\n*** End Patch"), Some((1, 1)));
        assert_eq!(of("*** Begin Patch\n*** Update File: a\n@@\n same\n*** End Patch"), Some((0, 1)));
        assert_eq!(of("no patch"), None);
    }

    #[test]
    fn wrapped_commands_are_looked_into() {
        let of = |json: &str| command_text(super::super::wire::json(json));
        assert_eq!(of(r#"["bash","-lc","git commit -m x"]"#).as_deref(), Some("git commit -m x"));
        assert_eq!(of(r#"["git","status"]"#).as_deref(), Some("git status"));
        assert_eq!(of(r#""/bin/bash -lc 'echo '\\''a'\\'''""#).as_deref(), Some("echo 'a'"));
        assert_eq!(of(r#""cargo test""#).as_deref(), Some("cargo test"));
        assert_eq!(of("7"), None);
    }
}
