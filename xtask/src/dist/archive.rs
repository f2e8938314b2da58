//! Archives whose bytes depend on what is in them and on nothing else: entries in the order given, owned by root, all of one
//! time, compressed without a name or a time of its own.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

use flate2::{Compression, GzBuilder};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// A file or a folder of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Relative, without a slash at its end.
    path: String,
    mode: u32,
    /// `None` for a folder.
    content: Option<Vec<u8>>,
}

impl Entry {
    /// A folder that everybody may enter.
    pub(crate) fn folder(path: &str) -> Self {
        Self { path: path.to_owned(), mode: 0o755, content: None }
    }

    /// A file that everybody may read.
    pub(crate) fn file(path: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), mode: 0o644, content: Some(content.into()) }
    }

    /// A file that everybody may run.
    pub(crate) fn program(path: &str, content: &[u8]) -> Self {
        Self { path: path.to_owned(), mode: 0o755, content: Some(content.to_vec()) }
    }
}

/// A tar with these entries, every one of the time `epoch`, in seconds since 1970.
pub(crate) fn tar(entries: &[Entry], epoch: u64) -> io::Result<Vec<u8>> {
    let mut builder = Builder::new(Vec::new());
    for Entry { path, mode, content } in entries {
        let (kind, path, content) = match content {
            Some(content) => (EntryType::Regular, path.clone(), content.as_slice()),
            None => (EntryType::Directory, format!("{path}/"), &[][..]),
        };
        // The plain format of POSIX, which everything reads, and which has no field that is not set here.
        let mut header = Header::new_ustar();
        header.set_path(path)?;
        header.set_entry_type(kind);
        header.set_mode(*mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(epoch);
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content)?;
    }
    builder.into_inner()
}

/// Compresses without a name and a time in the header.
pub(crate) fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// The SHA-256 in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// An entry as it was read from an archive.
#[cfg(test)]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) path: String,
    pub(crate) mode: u32,
    /// User and group.
    pub(crate) owner: (u64, u64),
    pub(crate) time: u64,
    pub(crate) content: Vec<u8>,
}

/// What is in an archive.
#[cfg(test)]
pub(crate) fn listed(tar: &[u8]) -> Vec<Listed> {
    use std::io::Read as _;
    let mut archive = tar::Archive::new(tar);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let header = entry.header().clone();
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        Listed {
            path,
            mode: header.mode().unwrap(),
            owner: (header.uid().unwrap(), header.gid().unwrap()),
            time: header.mtime().unwrap(),
            content,
        }
    });
    entries.collect()
}

/// What was compressed.
#[cfg(test)]
pub(crate) fn gunzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Read as _;
    let mut content = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut content).unwrap();
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_what_was_put_into_it_owned_by_root_and_of_one_time() {
        let entries = [Entry::folder("etc"), Entry::file("etc/a", "text"), Entry::program("run", b"program")];
        let tar = tar(&entries, 1_700_000_000).unwrap();
        let expected = |path: &str, mode, content: &str| Listed {
            path: path.to_owned(),
            mode,
            owner: (0, 0),
            time: 1_700_000_000,
            content: content.as_bytes().to_vec(),
        };
        assert_eq!(
            listed(&gunzip(&gzip(&tar).unwrap())),
            [
                expected("etc/", 0o755, ""),
                expected("etc/a", 0o644, "text"),
                expected("run", 0o755, "program")
            ]
        );
    }

    #[test]
    fn compressing_twice_gives_the_same_bytes_and_no_time() {
        let once = gzip(b"the same").unwrap();
        assert_eq!(once, gzip(b"the same").unwrap());
        // Flags (no name) and time, by RFC 1952.
        assert_eq!(once[3..8], [0; 5]);
    }

    #[test]
    fn a_digest_is_written_as_everybody_writes_it() {
        assert_eq!(sha256(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
