//! Recordings in the tree name nobody: no home folder but neutral ones, no mail address, no token.

use std::path::{Path, PathBuf};

/// Users whose home folders may be named.
const NEUTRAL: &[&str] = &["dev", "user"];
/// Beginnings of secrets, with the shortest rest that makes one and the characters of it.
const TOKENS: &[(&str, usize)] = &[
    ("sk-ant-", 10),
    ("sk-proj-", 10),
    ("sk-", 20),
    ("ghp_", 20),
    ("gho_", 20),
    ("ghs_", 20),
    ("github_pat_", 20),
    ("glpat-", 16),
    ("AKIA", 16),
    ("xoxb-", 10),
    ("xoxp-", 10),
    ("Bearer ", 16),
];
const HOMES: &[&str] = &["/home/", "/Users/", "\\Users\\", "\\\\Users\\\\"];

/// What is wrong with a text.
fn findings(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for prefix in HOMES {
        for rest in after(text, prefix, false) {
            let user = rest.split(|c: char| !(c.is_alphanumeric() || "._-".contains(c))).next().unwrap_or("");
            if !user.is_empty() && !NEUTRAL.contains(&user) {
                found.push(format!("home folder {prefix}{user}"));
            }
        }
    }
    for (prefix, least) in TOKENS {
        for rest in after(text, prefix, true) {
            let token =
                rest.split(|c: char| !(c.is_ascii_alphanumeric() || "_-.".contains(c))).next().unwrap_or("");
            // A word of a sentence or a name has no digits in it.
            if token.len() >= *least && token.chars().any(|c| c.is_ascii_digit()) {
                found.push(format!("token {prefix}…"));
            }
        }
    }
    for rest in after(text, "eyJ", true) {
        let token =
            rest.split(|c: char| !(c.is_ascii_alphanumeric() || "_-.".contains(c))).next().unwrap_or("");
        if token.split('.').count() == 3 && token.contains(".eyJ") {
            found.push("signed token eyJ…".to_owned());
        }
    }
    for (i, _) in text.match_indices('@') {
        let local = text[..i].chars().rev().take_while(|c| is_local(*c)).count();
        let domain: String = text[i + 1..].chars().take_while(|c| is_domain(*c)).collect();
        if local > 0 && is_address(&domain) {
            found.push(format!("mail address at {domain}"));
        }
    }
    found
}

/// What follows each occurrence; `at_word` leaves out those inside a word ("task-…").
fn after<'a>(text: &'a str, prefix: &'a str, at_word: bool) -> impl Iterator<Item = &'a str> {
    text.match_indices(prefix)
        .filter(move |(i, _)| !at_word || !text[..*i].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        .map(|(i, p)| &text[i + p.len()..])
}

fn is_local(c: char) -> bool {
    c.is_ascii_alphanumeric() || "._+-".contains(c)
}

fn is_domain(c: char) -> bool {
    c.is_ascii_alphanumeric() || ".-".contains(c)
}

/// Whether this is a domain in which a person could have an address. Masked letters are all x; package versions
/// (`name@1.2.3`) end in no letters.
fn is_address(domain: &str) -> bool {
    let domain = domain.trim_end_matches('.').to_ascii_lowercase();
    let Some((_, top)) = domain.rsplit_once('.') else { return false };
    let masked = domain.chars().all(|c| c == 'x' || c == '.');
    let neutral = ["example.com", "example.org", "example.net", "example.invalid"];
    top.len() >= 2
        && top.chars().all(|c| c.is_ascii_alphabetic())
        && !masked
        && !neutral.iter().any(|n| domain == *n || domain.ends_with(&format!(".{n}")))
}

fn files(folder: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, out);
        } else {
            out.push(path);
        }
    }
}

#[test]
fn recordings_name_nobody() {
    let mut paths = Vec::new();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for folder in ["fixtures", "golden"] {
        files(&tests.join(folder), &mut paths);
    }
    let mut found = Vec::new();
    for path in paths {
        let bytes = std::fs::read(&path).unwrap();
        for what in findings(&String::from_utf8_lossy(&bytes)) {
            found.push(format!("{}: {what}", path.display()));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn what_would_name_somebody_is_found() {
    // Put together here, so that this file holds none itself.
    let secret = "a1B2c3D4e5F6g7H8i9J0";
    for text in [
        "cwd: /home/maria/shop".to_owned(),
        "/Users/j.doe/x".to_owned(),
        "C:\\Users\\jane\\x".to_owned(),
        "C:\\\\Users\\\\jane\\\\x".to_owned(),
        "author maria@mail.test-company.de".to_owned(),
        format!("key sk-{secret}"),
        format!("\"ghp_{secret}\""),
        format!("AKIA{}", &secret.to_uppercase()[..16]),
        format!("Authorization: Bearer {secret}"),
        format!("eyJ{secret}.eyJ{secret}.{secret}"),
    ] {
        assert_eq!(findings(&text).len(), 1, "{text}");
    }
}

#[test]
fn neutral_text_is_left_alone() {
    for text in [
        "/home/dev/project /home/user/x /Users/dev/x C:\\\\Users\\\\dev\\\\x",
        "task-notification ask-question sk-completed",
        "serde@1.0.2, dev@example.com, xxxx@xxxx.xxx, @decorator, a @ b.c",
        "a cursor eyJpZCI6Im1zZ18yMjdlY2U2ZDQwMDFyenRkTklHUGFzYUxjbSIsIm9y",
        "the Bearer token is checked",
    ] {
        assert_eq!(findings(text), Vec::<String>::new(), "{text}");
    }
}
