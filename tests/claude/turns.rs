//! Where one turn ends and the next begins, where nothing says so but the next prompt.

use super::folded::{File, Folded, decode};

fn prompt(second: u32, prompt: Option<&str>) -> String {
    let named = prompt.map(|prompt| format!(r#""promptId":"{prompt}","#)).unwrap_or_default();
    format!(
        r#"{{"type":"user",{named}"sessionId":"s","uuid":"u{second}","timestamp":"2026-11-29T10:00:{second:02}.000Z","version":"2.1.235","message":{{"role":"user","content":"x{second}"}}}}"#
    )
}

fn turns(lines: &[String]) -> (u64, u64) {
    let bytes = lines.iter().map(|line| format!("{line}\n")).collect::<String>().into_bytes();
    let folded = Folded::of(decode(&[File { name: "s.jsonl".to_owned(), bytes }]));
    let turns = folded.root().turns;
    (turns.started, turns.failed)
}

#[test]
fn two_prompts_in_a_row_are_two_turns_where_their_names_say_so() {
    assert_eq!(turns(&[prompt(1, Some("a")), prompt(2, Some("b"))]), (2, 1));
    assert_eq!(turns(&[prompt(1, Some("a")), prompt(2, Some("a"))]), (1, 0));
    assert_eq!(turns(&[prompt(1, None), prompt(2, None)]), (1, 0));
}
