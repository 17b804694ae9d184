//! Whole lines out of a zstd file, decompressed as a stream with bounded memory. Such a file is history: it was
//! a plain one and never grows.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::read::{CHUNK, MAX_LINE, OnLine, PRINT, Read, hand_out_rest, split};
use super::{Hash, Prints};

/// Largest window a file may ask for; zstd's ordinary levels stay at 8 MiB.
pub(super) const MAX_WINDOW: u64 = 32 << 20;

/// A zstd file that is being read.
pub(super) struct Packed {
    frames: Frames,
    /// Decompressed bytes from `offset` on.
    carry: Vec<u8>,
    /// The first decompressed bytes.
    head: Vec<u8>,
    /// The last bytes that left `carry`.
    tail: Vec<u8>,
    /// Behind the last line handed out.
    pub(super) offset: u64,
    /// Bytes of an over-long line that were thrown away so far.
    skipped: u64,
    ended: bool,
}

/// The frames of a file, one after the other, as one stream.
struct Frames {
    source: BufReader<File>,
    decoder: FrameDecoder,
    in_frame: bool,
}

// === impl Packed ===

impl Packed {
    /// Opens a file and goes to `offset`. `None`: what lies before it is not what was read then.
    pub(super) fn open(file: File, offset: u64, prints: Prints, hash: &Hash) -> io::Result<Option<Self>> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW);
        let frames = Frames { source: BufReader::with_capacity(CHUNK, file), decoder, in_frame: false };
        let mut packed = Self {
            frames,
            carry: Vec::new(),
            head: Vec::new(),
            tail: Vec::new(),
            offset: 0,
            skipped: 0,
            ended: false,
        };
        if offset == 0 {
            return Ok(Some(packed));
        }
        let head_length = usize::try_from(offset).unwrap_or(PRINT).min(PRINT);
        while packed.head.len() < head_length {
            if packed.more()? == 0 {
                return Ok(None);
            }
        }
        if hash(&packed.head[..head_length]) != prints.head {
            return Ok(None);
        }
        while packed.offset < offset {
            let left = usize::try_from(offset - packed.offset).unwrap_or(usize::MAX);
            let step = left.min(packed.carry.len());
            packed.let_go(step);
            packed.offset += step as u64;
            if packed.offset < offset && packed.more()? == 0 {
                return Ok(None);
            }
        }
        Ok((packed.prints(hash) == prints).then_some(packed))
    }

    /// The fingerprints of what was read so far.
    pub(super) fn prints(&self, hash: &Hash) -> Prints {
        let length = usize::try_from(self.offset).unwrap_or(PRINT).min(self.head.len());
        Prints { head: hash(&self.head[..length]), tail: hash(&self.tail) }
    }

    /// Drops the first bytes of `carry`.
    fn let_go(&mut self, bytes: usize) {
        let last = &self.carry[bytes.saturating_sub(PRINT)..bytes];
        let surplus = (self.tail.len() + last.len()).saturating_sub(PRINT);
        self.tail.drain(..surplus);
        self.tail.extend_from_slice(last);
        self.carry.drain(..bytes);
    }

    /// Reads whole lines, up to `budget` bytes, and behind them a last one without an end that is `complete`.
    pub(super) fn read_lines(
        &mut self,
        budget: u64,
        complete: fn(&[u8]) -> bool,
        on_line: OnLine<'_>,
    ) -> io::Result<Read> {
        let stop_at = self.offset.saturating_add(budget);
        let mut done = Read::default();
        loop {
            if self.skipped > 0 {
                match memchr::memchr(b'\n', &self.carry) {
                    Some(at) => {
                        self.let_go(at + 1);
                        self.offset += self.skipped + at as u64 + 1;
                        self.skipped = 0;
                        done.too_long += 1;
                    }
                    None => {
                        self.skipped += self.carry.len() as u64;
                        self.let_go(self.carry.len());
                    }
                }
            }
            let mut enough = false;
            if self.skipped == 0 {
                let (taken, broke) = split(&self.carry, self.offset, on_line);
                self.let_go(taken);
                self.offset += taken as u64;
                enough = broke;
            }
            if enough || self.offset >= stop_at {
                done.more = true;
                return Ok(done);
            }
            if self.skipped == 0 && self.carry.len() > MAX_LINE {
                self.skipped = self.carry.len() as u64;
                self.let_go(self.carry.len());
                self.carry = Vec::new();
            }
            if self.more()? == 0 {
                if self.skipped == 0
                    && let Some(taken) = hand_out_rest(&self.carry, self.offset, complete, on_line)
                {
                    self.let_go(taken);
                    self.offset += taken as u64;
                }
                return Ok(done);
            }
        }
    }

    /// Decompresses a little more; 0 at the end.
    fn more(&mut self) -> io::Result<usize> {
        if self.ended {
            return Ok(0);
        }
        let before = self.carry.len();
        self.carry.resize(before + CHUNK, 0);
        let got = self.frames.read(&mut self.carry[before..]);
        self.carry.truncate(before + *got.as_ref().unwrap_or(&0));
        let wanted = (PRINT - self.head.len()).min(self.carry.len() - before);
        self.head.extend_from_slice(&self.carry[before..before + wanted]);
        self.ended = matches!(got, Ok(0));
        got
    }
}

// === impl Frames ===

impl io::Read for Frames {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.in_frame && self.decoder.can_collect() > 0 {
                return self.decoder.read(out);
            }
            if self.in_frame && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(io::Error::other)?;
                continue;
            }
            if self.source.fill_buf()?.is_empty() {
                return Ok(0);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => self.in_frame = true,
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skip = u64::from(length);
                    io::copy(&mut (&mut self.source).take(skip), &mut io::sink())?;
                    self.in_frame = false;
                }
                Err(e) => return Err(io::Error::other(e)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::{Seek as _, Write as _};
    use std::ops::ControlFlow;

    fn hash() -> Hash {
        std::sync::Arc::new(|b| b.iter().fold(7, |h, c| h * 31 % 1_000_003 + u64::from(*c)))
    }

    fn file_of(frames: &[&[u8]]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        for frame in frames {
            file.write_all(&compress_to_vec(*frame, CompressionLevel::Fastest)).unwrap();
        }
        file.rewind().unwrap();
        file
    }

    fn lengths(packed: &mut Packed) -> (Vec<usize>, u64) {
        let (mut lines, mut too_long) = (Vec::new(), 0);
        loop {
            let read = packed.read_lines(1 << 20, |_| false, &mut |line| {
                lines.push(line.bytes.len());
                ControlFlow::Continue(())
            });
            let read = read.unwrap();
            too_long += read.too_long;
            if !read.more {
                return (lines, too_long);
            }
        }
    }

    #[test]
    fn frames_follow_each_other_and_over_long_lines_are_skipped() {
        let long = vec![b'l'; 20 << 20];
        let file = file_of(&[b"one\ntw", b"o2\n", &long, b"\nfour4\nunfinished"]);
        let mut packed = Packed::open(file, 0, Prints::default(), &hash()).unwrap().unwrap();
        assert_eq!(lengths(&mut packed), (vec![3, 4, 5], 1));
        assert_eq!(packed.offset, 4 + 5 + (20 << 20) + 1 + 6);
    }

    #[test]
    fn it_goes_on_where_the_plain_file_was_left() {
        let content = "0123456789\n".repeat(1000);
        let print = |at: usize| hash()(&content.as_bytes()[at..at + PRINT]);
        let open =
            |offset, prints| Packed::open(file_of(&[content.as_bytes()]), offset, prints, &hash()).unwrap();
        let at = |offset: usize| Prints { head: print(0), tail: print(offset - PRINT) };
        assert_eq!(lengths(&mut open(9900, at(9900)).unwrap()).0.len(), 100);
        assert_eq!(lengths(&mut open(11_000, at(11_000)).unwrap()).0.len(), 0);
        assert!(open(9900, Prints { head: 1, ..at(9900) }).is_none());
        assert!(open(9900, Prints { tail: 1, ..at(9900) }).is_none());
        assert!(open(11_011, at(11_000)).is_none());
        // What was read in steps has the prints of what was read at once.
        let mut packed = open(0, Prints::default()).unwrap();
        lengths(&mut packed);
        assert_eq!(packed.prints(&hash()), at(11_000));
    }

    #[test]
    fn a_last_line_without_an_end_counts_when_it_is_complete() {
        for (last, lines) in [("{2}", 2), ("{2", 1)] {
            let file = file_of(&[format!("{{1}}\n{last}").as_bytes()]);
            let mut packed = Packed::open(file, 0, Prints::default(), &hash()).unwrap().unwrap();
            let mut seen = 0;
            let complete = |b: &[u8]| b.ends_with(b"}");
            let read = packed.read_lines(u64::MAX, complete, &mut |_| {
                seen += 1;
                ControlFlow::Continue(())
            });
            assert_eq!(read.unwrap(), Read::default());
            assert_eq!((seen, packed.offset), (lines, if lines == 2 { 7 } else { 4 }));
        }
    }

    #[test]
    fn damage_is_an_error_and_not_an_end() {
        let mut whole = compress_to_vec("line\n".repeat(50_000).as_bytes(), CompressionLevel::Fastest);
        whole.truncate(whole.len() / 2);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&whole).unwrap();
        file.rewind().unwrap();
        let mut packed = Packed::open(file, 0, Prints::default(), &hash()).unwrap().unwrap();
        let mut error = None;
        while error.is_none() {
            match packed.read_lines(u64::MAX, |_| false, &mut |_| ControlFlow::Continue(())) {
                Ok(read) => assert!(read.more, "a cut file has no end"),
                Err(e) => error = Some(e),
            }
        }
    }
}
