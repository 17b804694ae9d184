//! Reduction on arrival: what may not leave becomes a keyed hash or a class before it is an [`Event`](super::Event).

use std::collections::HashSet;
use std::hash::{Hash, Hasher as _};

use siphasher::sip::SipHasher13;

use super::{Commands, SourceId};

/// Longest id or name that is kept as it is, in bytes.
pub const MAX_TEXT: usize = 200;
/// How much of a longer one is kept before the hash that tells it from others with the same beginning.
const KEPT_PREFIX: usize = 120;
/// Rounds of command normalisation; each strips one prefix, so this bounds a hostile chain of them.
const MAX_ROUNDS: usize = 16;

/// Command words that are recognised, by what their success means. From the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runners {
    /// Test runners, each a command word with its leading arguments (`cargo test`); `*` stands for any part of a
    /// file's name (`python3 test_*.py`).
    pub tests: Vec<String>,
    /// Build tools likewise.
    pub builds: Vec<String>,
}

/// Turns content into hashes and classes. The key is a file of the state folder, so that hashes cannot be
/// compared with guesses by whoever sees a state file or an answer.
#[derive(Clone, Debug)]
pub struct Reducer {
    key: (u64, u64),
    runners: Runners,
    /// First words of the runners.
    first_words: HashSet<String>,
}

/// Unkeyed hash that stays the same over builds, for remembering ids that may be shown anyway.
pub fn stable_hash(value: impl Hash) -> u64 {
    StablePrefix::default().and(value)
}

/// The beginning that many such hashes have in common, hashed once.
#[derive(Clone, Copy, Debug, Default)]
pub struct StablePrefix(SipHasher13);

// === impl StablePrefix ===

impl StablePrefix {
    /// Of hashes that begin with this.
    pub fn of(value: impl Hash) -> Self {
        let mut prefix = Self::default();
        value.hash(&mut prefix.0);
        prefix
    }

    /// The hash of the beginning and of this, one after the other.
    pub fn and(mut self, value: impl Hash) -> u64 {
        value.hash(&mut self.0);
        self.0.finish()
    }
}

// === impl Runners ===

impl Default for Runners {
    fn default() -> Self {
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        Self {
            tests: own(&[
                "cargo test",
                "cargo nextest",
                "go test",
                "pytest",
                "py.test",
                "python -m pytest",
                "python3 -m pytest",
                "python -m unittest",
                "python3 -m unittest",
                "python test_*.py",
                "python3 test_*.py",
                "npm test",
                "npm run test",
                "npx vitest",
                "npx jest",
                "yarn test",
                "pnpm test",
                "pnpm run test",
                "bun test",
                "vitest",
                "jest",
                "mocha",
                "node --test",
                "deno test",
                "mvn test",
                "mvn verify",
                "gradle test",
                "./gradlew test",
                "dotnet test",
                "ctest",
                "make test",
                "make check",
                "just test",
                "rspec",
                "bundle exec rspec",
                "phpunit",
                "mix test",
                "swift test",
                "tox",
                "nox",
                "bats",
                "cargo clippy",
                "npm run lint",
                "ruff check",
                "mypy",
                "tsc --noEmit",
                "npx tsc --noEmit",
            ]),
            builds: own(&[
                "cargo build",
                "cargo check",
                "go build",
                "go vet",
                "npm run build",
                "yarn build",
                "pnpm build",
                "pnpm run build",
                "bun run build",
                "tsc",
                "npx tsc",
                "vite build",
                "npx vite build",
                "mvn package",
                "mvn compile",
                "mvn install",
                "gradle build",
                "./gradlew build",
                "dotnet build",
                "make",
                "make build",
                "make all",
                "cmake --build",
                "ninja",
                "bazel build",
                "swift build",
                "docker build",
                "just build",
                "zig build",
                "stack build",
                "cabal build",
                "mix compile",
            ]),
        }
    }
}

// === impl Reducer ===

impl Reducer {
    /// A reducer with this key and these runners.
    pub fn new(key: [u8; 16], runners: Runners) -> Self {
        let half = |from: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&key[from..from + 8]);
            u64::from_le_bytes(bytes)
        };
        let all = runners.tests.iter().chain(&runners.builds);
        let first_words = all.filter_map(|runner| Some(runner.split(' ').next()?.to_owned())).collect();
        Self { key: (half(0), half(8)), runners, first_words }
    }

    /// Keyed hash of one piece of content.
    pub fn hash(&self, content: &[u8]) -> u64 {
        let mut h = SipHasher13::new_with_keys(self.key.0, self.key.1);
        h.write(content);
        h.finish()
    }

    /// Keyed hash of several pieces, with their borders.
    pub fn hash_all(&self, parts: &[&[u8]]) -> u64 {
        let mut h = SipHasher13::new_with_keys(self.key.0, self.key.1);
        for part in parts {
            h.write_u64(part.len() as u64);
            h.write(part);
        }
        h.finish()
    }

    /// The deduplication key of an event.
    pub fn event_id(&self, source: &SourceId, session: &str, id: &str) -> u64 {
        self.hash_all(&[source.as_str().as_bytes(), session.as_bytes(), id.as_bytes()])
    }

    /// An id or name of bounded length. A long one keeps its beginning and gets a hash, so that two that begin
    /// alike stay two. Control characters become spaces; the exposition escapes the rest.
    pub fn bounded(&self, text: &str) -> String {
        let clean = |s: &str| {
            // Nearly every id and name is plain.
            if s.bytes().all(|b| (b' '..0x7f).contains(&b)) {
                return s.to_owned();
            }
            s.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect::<String>()
        };
        if text.len() <= MAX_TEXT {
            return clean(text);
        }
        let mut cut = KEPT_PREFIX;
        while !text.is_char_boundary(cut) {
            cut -= 1;
        }
        format!("{}~{:016x}", clean(&text[..cut]), self.hash(text.as_bytes()))
    }

    /// The name a project is shown by: the last component of its path, on either kind of separator.
    pub fn project_of(&self, path: &str) -> Option<String> {
        let name = path.rsplit(['/', '\\']).find(|part| !part.is_empty())?;
        Some(self.bounded(name))
    }

    /// Recognised commands anywhere in a shell command line, each as a command word.
    pub fn commands(&self, line: &str) -> Commands {
        let mut bits = 0;
        for part in split_commands(line) {
            let words = command_words(&part);
            if words.is_empty() {
                continue;
            }
            if is_git_commit(&words) {
                bits |= Commands::COMMIT;
            }
            // Dozens of runners, of which most commands are none: the first word tells.
            let first = words[0].rsplit('/').next().unwrap_or_default();
            if !self.first_words.contains(first) && !self.first_words.contains(words[0].as_str()) {
                continue;
            }
            if self.runners.tests.iter().any(|r| starts_with_words(&words, r)) {
                bits |= Commands::TEST;
            } else if self.runners.builds.iter().any(|r| starts_with_words(&words, r)) {
                bits |= Commands::BUILD;
            }
        }
        Commands(bits)
    }

    /// Keyed hash of a tool call: tool and canonical arguments. Object keys are sorted by `serde_json`'s map.
    pub fn call_key(&self, tool: &str, canonical_arguments: &str) -> u64 {
        self.hash_all(&[tool.as_bytes(), canonical_arguments.as_bytes()])
    }

    /// Keyed hash of a shell call, by its normalised command.
    pub fn command_key(&self, tool: &str, command: &str) -> u64 {
        self.hash_all(&[tool.as_bytes(), normal_command(command).as_bytes()])
    }

    /// Keyed hash of an error: tool and the first 100 characters with digits masked.
    pub fn error_fingerprint(&self, tool: &str, error: &str) -> u64 {
        let masked: String =
            error.trim().chars().take(100).map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        self.hash_all(&[tool.as_bytes(), masked.as_bytes()])
    }
}

/// A command line in the form in which repetitions are told: comments, a leading `cd`, environment, `timeout`,
/// `nohup`, `time` and sleeps removed until nothing changes, blanks collapsed.
pub fn normal_command(line: &str) -> String {
    let mut text = collapse(&strip_comments(line));
    for _ in 0..MAX_ROUNDS {
        let before = text.len();
        text = strip_prefix_once(&text);
        if text.len() == before {
            break;
        }
    }
    text
}

/// Removes one leading wrapper.
fn strip_prefix_once(text: &str) -> String {
    let first_end = text.find(' ').unwrap_or(text.len());
    let first = &text[..first_end];
    let rest = text[first_end..].trim_start();
    let after_separator = |only_and: bool| {
        let and = text.find("&&").map(|i| (i, 2));
        let semi = if only_and { None } else { text.find(';').map(|i| (i, 1)) };
        [and, semi].into_iter().flatten().min().map(|(i, n)| text[i + n..].trim_start().to_owned())
    };
    match first {
        "cd" | "pushd" => after_separator(false).unwrap_or_else(|| text.to_owned()),
        "sleep" => after_separator(true).unwrap_or_else(|| text.to_owned()),
        "env" | "nohup" | "time" | "command" if !rest.is_empty() => rest.to_owned(),
        "timeout" if !rest.is_empty() => {
            let mut words = rest.split(' ').peekable();
            while let Some(option) = words.next_if(|w| w.starts_with('-')) {
                if matches!(option, "-k" | "-s" | "--kill-after" | "--signal") {
                    words.next();
                }
            }
            words.next();
            words.collect::<Vec<_>>().join(" ")
        }
        _ if is_assignment(first) && !rest.is_empty() => rest.to_owned(),
        _ => text.to_owned(),
    }
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// Drops `# …` outside quotes where it begins a word.
fn strip_comments(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut quote = None;
    let mut in_comment = false;
    let mut previous = ' ';
    for c in line.chars() {
        if in_comment {
            in_comment = c != '\n';
            if in_comment {
                continue;
            }
        }
        match quote {
            Some(q) if c == q => quote = None,
            None if c == '\'' || c == '"' => quote = Some(c),
            None if c == '#' && previous.is_whitespace() => {
                in_comment = true;
                continue;
            }
            _ => {}
        }
        out.push(c);
        previous = c;
    }
    out
}

fn collapse(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

/// The simple commands of a line: split at `;`, `|`, `&`, newlines, parentheses and braces outside quotes.
fn split_commands(line: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quote = None;
    for c in strip_comments(line).chars() {
        match quote {
            Some(q) if c == q => quote = None,
            Some(_) => {}
            None if c == '\'' || c == '"' => quote = Some(c),
            None if matches!(c, ';' | '|' | '&' | '\n' | '(' | ')' | '{' | '}') => {
                parts.push(String::new());
                continue;
            }
            None => {}
        }
        if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts
}

/// Words of a simple command, wrappers removed. `bash -lc "…"` is looked into by the caller's decoder, which
/// knows the argument vector.
fn command_words(part: &str) -> Vec<String> {
    normal_command(part).split(' ').filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

fn starts_with_words(words: &[String], runner: &str) -> bool {
    let mut n = 0;
    for wanted in runner.split(' ') {
        let Some(word) = words.get(n) else { return false };
        let base =
            if n == 0 && !wanted.contains('/') { word.rsplit('/').next().unwrap_or(word) } else { word };
        if base != wanted {
            // Options between the words of a runner (`python3 -B -m pytest`, `cargo +nightly test`).
            let mut skipped = n;
            while n > 0
                && words
                    .get(skipped)
                    .is_some_and(|w| (w.starts_with('-') || w.starts_with('+')) && w != wanted)
            {
                skipped += 1;
            }
            if words.get(skipped).is_none_or(|w| !is_word(w, wanted)) {
                return false;
            }
            n = skipped;
        }
        n += 1;
    }
    true
}

/// Whether a word is the wanted one; `*` in that stands for any text within a file's name.
fn is_word(word: &str, wanted: &str) -> bool {
    match wanted.split_once('*') {
        None => word == wanted,
        Some((begins, ends)) => {
            let name = word.rsplit('/').next().unwrap_or(word);
            name.len() >= begins.len() + ends.len() && name.starts_with(begins) && name.ends_with(ends)
        }
    }
}

fn is_git_commit(words: &[String]) -> bool {
    if words.first().is_none_or(|w| w.rsplit('/').next() != Some("git")) {
        return false;
    }
    let mut i = 1;
    while let Some(word) = words.get(i) {
        match word.as_str() {
            "-C" | "-c" | "--git-dir" | "--work-tree" => i += 2,
            w if w.starts_with('-') => i += 1,
            w => return w == "commit",
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reducer() -> Reducer {
        Reducer::new([7; 16], Runners::default())
    }

    #[test]
    fn commands_are_recognised_as_command_words_only() {
        let r = reducer();
        let is = |line: &str, bit: u8| r.commands(line).has(bit);
        assert!(is("git add . && git commit -m x && git log", Commands::COMMIT));
        assert!(is("git -C repo -c user.name=x commit -m 'y'", Commands::COMMIT));
        assert!(!is("echo git commit", Commands::COMMIT));
        assert!(!is("grep 'git commit' README.md", Commands::COMMIT));
        assert!(!is("git log # git commit", Commands::COMMIT));
        assert!(!is("git commit-tree HEAD", Commands::COMMIT));
        assert!(is("python3 -B -m unittest -v", Commands::TEST));
        assert!(is("cd x && CI=1 timeout 60 cargo +nightly test --all 2>&1 | tail", Commands::TEST));
        assert!(is("./node_modules/.bin/jest", Commands::TEST));
        assert!(is("cd x; python3 -B tests/test_calc.py -v", Commands::TEST));
        assert!(!is("python3 calc.py test_calc.py", Commands::TEST));
        assert!(!is("cargo testx", Commands::TEST));
        assert!(is("cargo build --release", Commands::BUILD));
        assert!(is("make -j4", Commands::BUILD));
        assert!(!is("make test", Commands::BUILD));
    }

    #[test]
    fn churn_around_a_command_is_removed() {
        for line in [
            "make check",
            "cd /src && make check",
            "cd /src; FOO=1 make check",
            "env FOO=1 timeout -k 5 60 make   check # again",
            "sleep 5 && nohup make check",
            "time make check  # attempt 3",
        ] {
            assert_eq!(normal_command(line), "make check", "{line}");
        }
        assert_eq!(normal_command("echo '# no comment'"), "echo '# no comment'");
    }

    #[test]
    fn long_names_stay_distinct() {
        let r = reducer();
        let (a, b) = ("a".repeat(10_000), format!("{}b", "a".repeat(9_999)));
        assert_ne!(r.bounded(&a), r.bounded(&b));
        assert!(r.bounded(&a).len() <= MAX_TEXT);
        assert_eq!(r.bounded("plain"), "plain");
    }

    #[test]
    fn a_project_is_the_last_component() {
        let r = reducer();
        assert_eq!(r.project_of("/home/dev/project/").as_deref(), Some("project"));
        assert_eq!(r.project_of("C:\\code\\shop").as_deref(), Some("shop"));
        assert_eq!(r.project_of("/"), None);
    }

    #[test]
    fn fingerprints_ignore_numbers() {
        let r = reducer();
        assert_eq!(r.error_fingerprint("bash", "line 12: no"), r.error_fingerprint("bash", "line 34: no"));
        assert_ne!(r.error_fingerprint("bash", "no"), r.error_fingerprint("edit", "no"));
    }
}
