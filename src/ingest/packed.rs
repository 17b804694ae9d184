//! Whole lines out of a zstd file, decompressed as a stream with bounded memory. Such a file is history: it was
//! a plain one and never grows.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::Hash;
use super::read::{CHUNK, HEAD, MAX_LINE, OnLine, Read, split};

/// Largest window a file may ask for; zstd's ordinary levels stay at 8 MiB.
const MAX_WINDOW: u64 = 32 << 20;

/// A zstd file that is being read.
pub(super) struct Packed {
    frames: Frames,
    /// Decompressed bytes from `offset` on.
    carry: Vec<u8>,
    /// The first decompressed bytes.
    head: Vec<u8>,
    /// Start of the first line not handed out.
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
    pub(super) fn open(file: File, offset: u64, head: u64, hash: &Hash) -> io::Result<Option<Self>> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW);
        let frames = Frames { source: BufReader::with_capacity(CHUNK, file), decoder, in_frame: false };
        let mut packed =
            Self { frames, carry: Vec::new(), head: Vec::new(), offset: 0, skipped: 0, ended: false };
        if offset == 0 {
            return Ok(Some(packed));
        }
        let head_length = usize::try_from(offset).unwrap_or(HEAD).min(HEAD);
        while packed.head.len() < head_length {
            if packed.more()? == 0 {
                return Ok(None);
            }
        }
        if hash(&packed.head[..head_length]) != head {
            return Ok(None);
        }
        while packed.offset < offset {
            let left = usize::try_from(offset - packed.offset).unwrap_or(usize::MAX);
            let step = left.min(packed.carry.len());
            packed.carry.drain(..step);
            packed.offset += step as u64;
            if packed.offset < offset && packed.more()? == 0 {
                return Ok(None);
            }
        }
        Ok(Some(packed))
    }

    /// The fingerprint of what was read so far.
    pub(super) fn head(&self, hash: &Hash) -> u64 {
        let length = usize::try_from(self.offset).unwrap_or(HEAD).min(self.head.len());
        hash(&self.head[..length])
    }

    /// Reads whole lines, up to `budget` bytes.
    pub(super) fn read_lines(&mut self, budget: u64, on_line: OnLine<'_>) -> io::Result<Read> {
        let stop_at = self.offset.saturating_add(budget);
        let mut done = Read::default();
        loop {
            if self.skipped > 0 {
                match memchr::memchr(b'\n', &self.carry) {
                    Some(at) => {
                        self.carry.drain(..=at);
                        self.offset += self.skipped + at as u64 + 1;
                        self.skipped = 0;
                        done.too_long += 1;
                    }
                    None => {
                        self.skipped += self.carry.len() as u64;
                        self.carry.clear();
                    }
                }
            }
            let mut enough = false;
            if self.skipped == 0 {
                let (taken, broke) = split(&self.carry, self.offset, on_line);
                self.carry.drain(..taken);
                self.offset += taken as u64;
                enough = broke;
            }
            if enough || self.offset >= stop_at {
                done.more = true;
                return Ok(done);
            }
            if self.skipped == 0 && self.carry.len() > MAX_LINE {
                self.skipped = self.carry.len() as u64;
                self.carry = Vec::new();
            }
            if self.more()? == 0 {
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
        let wanted = (HEAD - self.head.len()).min(self.carry.len() - before);
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
            let read = packed.read_lines(1 << 20, &mut |line| {
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
        let mut packed = Packed::open(file, 0, 0, &hash()).unwrap().unwrap();
        assert_eq!(lengths(&mut packed), (vec![3, 4, 5], 1));
        assert_eq!(packed.offset, 4 + 5 + (20 << 20) + 1 + 6);
    }

    #[test]
    fn it_goes_on_where_the_plain_file_was_left() {
        let content = "0123456789\n".repeat(1000);
        let head = hash()(&content.as_bytes()[..HEAD]);
        let open =
            |offset, head| Packed::open(file_of(&[content.as_bytes()]), offset, head, &hash()).unwrap();
        assert_eq!(lengths(&mut open(9900, head).unwrap()).0.len(), 100);
        assert_eq!(lengths(&mut open(11_000, head).unwrap()).0.len(), 0);
        assert!(open(9900, head + 1).is_none());
        assert!(open(11_011, head).is_none());
    }

    #[test]
    fn damage_is_an_error_and_not_an_end() {
        let mut whole = compress_to_vec("line\n".repeat(50_000).as_bytes(), CompressionLevel::Fastest);
        whole.truncate(whole.len() / 2);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&whole).unwrap();
        file.rewind().unwrap();
        let mut packed = Packed::open(file, 0, 0, &hash()).unwrap().unwrap();
        let mut error = None;
        while error.is_none() {
            match packed.read_lines(u64::MAX, &mut |_| ControlFlow::Continue(())) {
                Ok(read) => assert!(read.more, "a cut file has no end"),
                Err(e) => error = Some(e),
            }
        }
    }
}
