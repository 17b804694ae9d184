//! Whole lines out of a file that may be growing, with bounded memory. What a line means is not known here.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;

use super::Hash;

/// Longest line that is handed out; a longer one is skipped to its newline and counted. Recorded rollouts have
/// lines of 8 MB, written twice; public reports name 27 MB.
pub const MAX_LINE: usize = 8 << 20;
/// Bytes at the beginning of a file that tell whether it is still the one that was read.
pub(super) const HEAD: usize = 256;
/// Bytes read at once.
pub(super) const CHUNK: usize = 128 << 10;
/// Bytes looked through in one go for the end of an over-long line, so that such a file cannot hold up the rest.
const SEARCH: u64 = 64 << 20;

/// One line without its end, not empty.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// Offset behind its newline.
    pub end: u64,
}

/// Takes a line; `Break` ends the slice behind it.
pub(super) type OnLine<'a> = &'a mut dyn FnMut(Line<'_>) -> ControlFlow<()>;

/// Where reading stands in a growing file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// Start of the first line not handed out.
    pub(super) offset: u64,
    /// No newline between `offset` and here: an unfinished line is read once, not at every piece of it.
    pub(super) searched: u64,
}

/// What one read did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    /// There is more to read now.
    pub(super) more: bool,
    /// Lines skipped for their length.
    pub(super) too_long: u64,
}

/// Hands out the whole lines of `bytes`, which begin at `base`. Returns how many bytes they took, and whether the
/// taker has had enough.
pub(super) fn split(bytes: &[u8], base: u64, on_line: OnLine<'_>) -> (usize, bool) {
    let mut from = 0;
    for newline in memchr::memchr_iter(b'\n', bytes) {
        let line = tidy(&bytes[from..newline], base + from as u64 == 0);
        from = newline + 1;
        if line.is_empty() {
            continue;
        }
        if on_line(Line { bytes: line, end: base + from as u64 }).is_break() {
            return (from, true);
        }
    }
    (from, false)
}

/// Takes off what editors and copying tools of other systems add.
fn tidy(line: &[u8], first: bool) -> &[u8] {
    let line = if first { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
    line.trim_ascii_end()
}

/// Reads whole lines from `place` on, up to `budget` bytes.
pub(super) fn read_lines(
    file: &File,
    place: &mut Place,
    buffer: &mut Vec<u8>,
    budget: u64,
    on_line: OnLine<'_>,
) -> io::Result<Read> {
    let stop_at = place.offset.saturating_add(budget);
    let mut done = Read::default();
    loop {
        let mut want = CHUNK;
        if place.searched > place.offset {
            let Some(newline) = find_newline(file, place, buffer, &mut done.more)? else { return Ok(done) };
            let length = newline - place.offset;
            if length > MAX_LINE as u64 {
                done.too_long += 1;
                *place = Place { offset: newline + 1, searched: newline + 1 };
                continue;
            }
            want = want.max(usize::try_from(length).unwrap_or(MAX_LINE) + 1);
        }
        buffer.resize(want, 0);
        let got = fill(file, buffer, place.offset)?;
        let (taken, enough) = split(&buffer[..got], place.offset, on_line);
        place.offset += taken as u64;
        place.searched = if enough { place.offset } else { place.offset + (got - taken) as u64 };
        if got < want && !enough {
            return Ok(done);
        }
        if enough || place.offset >= stop_at {
            done.more = true;
            return Ok(done);
        }
        // A chunk rarely ends with a line. Where one line was finished, the rest is read again with the next chunk.
        if taken > 0 {
            place.searched = place.offset;
        }
    }
}

/// Looks for the newline that ends the line at `place.offset`.
fn find_newline(
    file: &File,
    place: &mut Place,
    buffer: &mut Vec<u8>,
    more: &mut bool,
) -> io::Result<Option<u64>> {
    let give_up = place.searched + SEARCH;
    buffer.resize(buffer.len().max(CHUNK), 0);
    while place.searched < give_up {
        let got = fill(file, buffer, place.searched)?;
        if let Some(at) = memchr::memchr(b'\n', &buffer[..got]) {
            return Ok(Some(place.searched + at as u64));
        }
        place.searched += got as u64;
        if got < buffer.len() {
            return Ok(None);
        }
    }
    *more = true;
    Ok(None)
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], at + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

/// The fingerprint of a file that was read up to `offset`. `None`: the byte before `offset` ends no line, or the
/// file is shorter, so this is not what was read.
pub(super) fn head_of(file: &File, offset: u64, hash: &Hash) -> io::Result<Option<u64>> {
    let mut head = [0; HEAD];
    let length = usize::try_from(offset).unwrap_or(HEAD).min(HEAD);
    if fill(file, &mut head[..length], 0)? < length {
        return Ok(None);
    }
    let mut last = [b'\n'];
    if offset > 0 && (fill(file, &mut last, offset - 1)? == 0 || last != *b"\n") {
        return Ok(None);
    }
    Ok(Some(hash(&head[..length])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn all(file: &File, place: &mut Place, budget: u64) -> (Vec<(Vec<u8>, u64)>, Read) {
        let (mut lines, mut buffer) = (Vec::new(), Vec::new());
        let read = read_lines(file, place, &mut buffer, budget, &mut |line| {
            lines.push((line.bytes.to_vec(), line.end));
            ControlFlow::Continue(())
        });
        (lines, read.unwrap())
    }

    fn file_of(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    #[test]
    fn marks_and_line_ends_of_other_systems_are_taken_off() {
        let file = file_of(b"\xef\xbb\xbf{1}\r\n\r\n\n  \n{2}\n\xef\xbb\xbf{3}\n{4");
        let mut place = Place::default();
        let (lines, read) = all(&file, &mut place, u64::MAX);
        let text: Vec<_> = lines.iter().map(|(l, _)| l.as_slice()).collect();
        assert_eq!(text, [b"{1}".as_slice(), b"{2}", b"\xef\xbb\xbf{3}"]);
        assert_eq!(lines[0].1, 8);
        assert_eq!(read, Read::default());
        assert_eq!((place.offset, place.searched), (25, 27));
    }

    #[test]
    fn an_over_long_line_is_skipped_and_the_longest_is_not() {
        let mut content = vec![b'a'; MAX_LINE];
        content.push(b'\n');
        content.extend(vec![b'b'; MAX_LINE + 1]);
        content.extend(b"\nc\n");
        let file = file_of(&content);
        let mut place = Place::default();
        let (lines, read) = all(&file, &mut place, u64::MAX);
        let lengths: Vec<_> = lines.iter().map(|(l, _)| l.len()).collect();
        assert_eq!(lengths, [MAX_LINE, 1]);
        assert_eq!(read.too_long, 1);
    }

    #[test]
    fn a_slice_ends_at_its_budget_and_goes_on_there() {
        let line = format!("{}\n", "x".repeat(999));
        let file = file_of(line.repeat(1000).as_bytes());
        let (mut place, mut count, mut slices) = (Place::default(), 0, 0);
        loop {
            let (lines, read) = all(&file, &mut place, 200_000);
            count += lines.len();
            slices += 1;
            if !read.more {
                break;
            }
        }
        assert_eq!(count, 1000);
        assert!(slices > 3, "{slices}");
    }

    #[test]
    fn the_fingerprint_tells_a_rewritten_file() {
        let hash: Hash = std::sync::Arc::new(|b| b.iter().fold(7, |h, c| h * 31 % 1_000_003 + u64::from(*c)));
        let (old, new) = (file_of(b"one\ntwo\n"), file_of(b"two\none\n"));
        let head = head_of(&old, 4, &hash).unwrap();
        assert!(head.is_some());
        assert_ne!(head, head_of(&new, 4, &hash).unwrap());
        assert_eq!(head_of(&old, 5, &hash).unwrap(), None);
        assert_eq!(head_of(&old, 9, &hash).unwrap(), None);
    }
}
