//! Holds one source transaction until it is known that it committed and what it means.
//!
//! A child's row may come before the parent's that makes it the organization's, so nothing of a
//! transaction can be applied before all of it was seen, and it is read more than once: first for
//! the parents it brings and takes, then to apply it. Up to a limit the frames stay in memory; a
//! larger transaction goes to a file without a name, which the kernel removes with its last handle,
//! however the mover ends.
//!
//! Frames are kept as they came and decoded when they are read: nothing per row is kept.
//!
//! Files are read and written in the calling task. What is written goes to the page cache, one
//! buffer at a time, and costs less than handing it to another thread would.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use bytes::{Buf, Bytes, BytesMut};

/// Bytes that a pass reads from the file at a time.
const READ_BYTES: usize = 256 * 1024;
/// What stands before each frame: its length.
const LENGTH_BYTES: usize = 4;

/// Where transactions are held, and how much of one in memory.
#[derive(Debug, Clone)]
pub struct Spool {
    /// The folder for transactions that do not fit in memory.
    pub folder: PathBuf,
    /// The largest transaction that is held in memory, in bytes.
    pub memory_bytes: usize,
}

impl Spool {
    /// What a mover holds in memory of one transaction unless told otherwise, in bytes.
    pub const MEMORY_BYTES: usize = 16 * 1024 * 1024;

    /// A spool in `folder` with the usual limit.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            memory_bytes: Self::MEMORY_BYTES,
        }
    }
}

/// The frames of one transaction while it arrives.
#[derive(Debug)]
pub struct Recorder {
    spool: Spool,
    memory: BytesMut,
    file: Option<BufWriter<File>>,
    file_bytes: u64,
    frames: u64,
    streamed: Option<BTreeSet<u32>>,
}

impl Recorder {
    /// A recorder without frames.
    pub fn new(spool: &Spool) -> Self {
        Self {
            spool: spool.clone(),
            memory: BytesMut::new(),
            file: None,
            file_bytes: 0,
            frames: 0,
            streamed: None,
        }
    }

    /// The frames to come are parts of a large transaction: each tells the subtransaction that it
    /// belongs to.
    pub fn in_parts(&mut self) {
        self.streamed.get_or_insert_default();
    }

    /// A subtransaction came to nothing. Its frames stay, and are known to be nothing.
    pub fn abort(&mut self, subxid: u32) {
        self.streamed.get_or_insert_default().insert(subxid);
    }

    /// Takes the next frame.
    ///
    /// # Errors
    ///
    /// When the spool folder cannot be written, for example because its disk is full, or when a
    /// frame is longer than 4 GiB. The transaction is then lost here, and will be delivered again.
    pub fn push(&mut self, frame: &[u8]) -> io::Result<()> {
        let length = u32::try_from(frame.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a frame of 4 GiB or more"))?;
        let bytes = LENGTH_BYTES + frame.len();
        if self.file.is_none() && self.memory.len() + bytes > self.spool.memory_bytes {
            self.spill()?;
        }
        match &mut self.file {
            Some(file) => {
                file.write_all(&length.to_be_bytes())?;
                file.write_all(frame)?;
                self.file_bytes += bytes as u64;
            }
            None => {
                self.memory.extend_from_slice(&length.to_be_bytes());
                self.memory.extend_from_slice(frame);
            }
        }
        self.frames += 1;
        Ok(())
    }

    /// The transaction, now whole.
    ///
    /// # Errors
    ///
    /// When what is left cannot be written to the spool folder.
    pub fn finish(self) -> io::Result<Recording> {
        let held = match self.file {
            Some(file) => Held::File {
                file: file.into_inner().map_err(io::IntoInnerError::into_error)?,
                bytes: self.file_bytes,
            },
            None => Held::Memory(self.memory.freeze()),
        };
        Ok(Recording {
            held,
            frames: self.frames,
            streamed: self.streamed,
        })
    }

    fn spill(&mut self) -> io::Result<()> {
        let mut file =
            BufWriter::with_capacity(READ_BYTES, tempfile::tempfile_in(&self.spool.folder)?);
        file.write_all(&self.memory)?;
        self.file_bytes = self.memory.len() as u64;
        self.file = Some(file);
        self.memory = BytesMut::new();
        Ok(())
    }
}

/// The frames of one whole transaction, to be read as often as needed.
#[derive(Debug)]
pub struct Recording {
    held: Held,
    frames: u64,
    /// For a transaction that came in parts: the subtransactions that came to nothing.
    streamed: Option<BTreeSet<u32>>,
}

#[derive(Debug)]
enum Held {
    Memory(Bytes),
    File { file: File, bytes: u64 },
}

impl Recording {
    /// The number of frames.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Whether it came in parts, so that each frame tells its subtransaction.
    pub fn is_streamed(&self) -> bool {
        self.streamed.is_some()
    }

    /// Whether this subtransaction came to nothing.
    pub fn is_aborted(&self, subxid: u32) -> bool {
        self.streamed
            .as_ref()
            .is_some_and(|aborted| aborted.contains(&subxid))
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        match &self.held {
            Held::Memory(bytes) => bytes.len() as u64,
            Held::File { bytes, .. } => *bytes,
        }
    }

    /// Bytes that are held in memory.
    pub fn memory_bytes(&self) -> usize {
        match &self.held {
            Held::Memory(bytes) => bytes.len(),
            Held::File { .. } => 0,
        }
    }

    /// A pass over the frames, from the first.
    pub fn replay(&self) -> Replay<'_> {
        match &self.held {
            Held::Memory(bytes) => Replay {
                ready: bytes.clone(),
                rest: None,
            },
            Held::File { file, bytes } => Replay {
                ready: Bytes::new(),
                rest: Some(Rest {
                    file,
                    at: 0,
                    end: *bytes,
                }),
            },
        }
    }
}

/// One pass over the frames of a transaction.
#[derive(Debug)]
pub struct Replay<'a> {
    /// Read and not yet handed out.
    ready: Bytes,
    rest: Option<Rest<'a>>,
}

#[derive(Debug)]
struct Rest<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Replay<'_> {
    /// The next frame; nothing at the end. A frame from memory is not copied.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn next_frame(&mut self) -> io::Result<Option<Bytes>> {
        if self.ready.is_empty() && self.rest.as_ref().is_none_or(|rest| rest.at == rest.end) {
            return Ok(None);
        }
        self.need(LENGTH_BYTES)?;
        let length = self.ready.get_u32() as usize;
        self.need(length)?;
        Ok(Some(self.ready.split_to(length)))
    }

    fn need(&mut self, bytes: usize) -> io::Result<()> {
        if self.ready.len() >= bytes {
            return Ok(());
        }
        let short = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let rest = self.rest.as_mut().ok_or_else(short)?;
        let left = usize::try_from(rest.end - rest.at).unwrap_or(usize::MAX);
        let missing = bytes - self.ready.len();
        let read = missing.max(READ_BYTES).min(left);
        if read < missing {
            return Err(short());
        }
        let kept = self.ready.len();
        let mut buffer = vec![0; kept + read];
        buffer[..kept].copy_from_slice(&self.ready);
        rest.file.read_exact_at(&mut buffer[kept..], rest.at)?;
        rest.at += read as u64;
        self.ready = Bytes::from(buffer);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(memory_bytes: usize, frames: &[Vec<u8>]) -> Recording {
        let spool = Spool {
            folder: std::env::temp_dir(),
            memory_bytes,
        };
        let mut recorder = Recorder::new(&spool);
        for frame in frames {
            recorder.push(frame).unwrap();
        }
        recorder.finish().unwrap()
    }

    fn frames() -> Vec<Vec<u8>> {
        let sizes = [0, 1, 5, 70_000, READ_BYTES, READ_BYTES * 3 + 1, 2];
        let of = |(at, size): (usize, &usize)| vec![u8::try_from(at).unwrap(); *size];
        sizes.iter().cycle().take(40).enumerate().map(of).collect()
    }

    fn read(recording: &Recording) -> Vec<Vec<u8>> {
        let mut replay = recording.replay();
        std::iter::from_fn(|| replay.next_frame().unwrap().map(|frame| frame.to_vec())).collect()
    }

    /// Guards promise 3: whatever its size, a transaction is read whole, in order, twice.
    #[test]
    fn a_transaction_reads_the_same_from_memory_and_from_a_file() {
        let frames = frames();
        let all: usize = frames.iter().map(|frame| frame.len() + LENGTH_BYTES).sum();
        for memory_bytes in [0, 3, 80_000, all - 1, all] {
            let recording = record(memory_bytes, &frames);
            assert_eq!(recording.frames(), 40);
            assert_eq!(recording.memory_bytes() > 0, memory_bytes == all);
            assert_eq!(read(&recording), frames, "limit {memory_bytes}");
            assert_eq!(read(&recording), frames, "limit {memory_bytes}, again");
        }
    }

    #[test]
    fn an_empty_transaction_has_no_frame() {
        assert!(read(&record(10, &[])).is_empty());
    }

    /// Guards promise 7: a spooled transaction leaves no name in its folder.
    #[test]
    fn a_spooled_transaction_has_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::new(&Spool {
            folder: folder.path().to_owned(),
            memory_bytes: 10,
        });
        recorder.push(&[7; 100]).unwrap();
        let recording = recorder.finish().unwrap();
        assert_eq!(recording.memory_bytes(), 0);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let mut recorder = Recorder::new(&Spool {
            folder: "/nowhere/at/all".into(),
            memory_bytes: 1,
        });
        assert!(recorder.push(b"frame").is_err());
    }
}
