//! What an executable says about itself: for which machine it is, and whether it needs a loader.
//!
//! An image from scratch has no loader and no libraries, so that a program that names one would not even start there.

use anyhow::{Context, Result, bail};

/// The program header that names the loader.
const PT_INTERP: u32 = 3;

/// What was found out about an executable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Executable {
    /// By the name that images use: `amd64` or `arm64`.
    pub(crate) architecture: &'static str,
    /// Whether it needs no loader.
    pub(crate) is_static: bool,
}

impl Executable {
    /// Reads the headers of an ELF file of 64 bits, little endian.
    pub(crate) fn read(file: &[u8]) -> Result<Self> {
        if !file.starts_with(b"\x7fELF\x02\x01") {
            bail!("this is not a Linux program of 64 bits");
        }
        let architecture = match u16_at(file, 18)? {
            62 => "amd64",
            183 => "arm64",
            other => bail!("this program is for a machine that no image is made for (ELF machine {other})"),
        };
        let (start, size, count) = (u64_at(file, 32)?, u16_at(file, 54)?, u16_at(file, 56)?);
        let start = usize::try_from(start)?;
        let mut is_static = true;
        for header in 0..usize::from(count) {
            is_static &= u32_at(file, start.saturating_add(header * usize::from(size)))? != PT_INTERP;
        }
        Ok(Self { architecture, is_static })
    }
}

fn bytes_at<const N: usize>(file: &[u8], at: usize) -> Result<[u8; N]> {
    let bytes = file.get(at..).and_then(|rest| rest.first_chunk());
    bytes.copied().context("this program is cut off")
}

fn u16_at(file: &[u8], at: usize) -> Result<u16> {
    bytes_at(file, at).map(u16::from_le_bytes)
}

fn u32_at(file: &[u8], at: usize) -> Result<u32> {
    bytes_at(file, at).map(u32::from_le_bytes)
}

fn u64_at(file: &[u8], at: usize) -> Result<u64> {
    bytes_at(file, at).map(u64::from_le_bytes)
}

/// The smallest executable that [`Executable::read`] accepts, with one program header of this type.
#[cfg(test)]
pub(crate) fn smallest(machine: u16, header: u32) -> Vec<u8> {
    let mut file = vec![0; 64 + 56];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    file[18..20].copy_from_slice(&machine.to_le_bytes());
    file[32] = 64;
    file[54] = 56;
    file[56] = 1;
    file[64..68].copy_from_slice(&header.to_le_bytes());
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    const PT_LOAD: u32 = 1;

    #[test]
    fn machine_and_loader_are_read_from_the_headers() {
        for (machine, header, architecture, is_static) in
            [(62, PT_LOAD, "amd64", true), (62, PT_INTERP, "amd64", false), (183, PT_LOAD, "arm64", true)]
        {
            let read = Executable::read(&smallest(machine, header)).unwrap();
            assert_eq!(read, Executable { architecture, is_static });
        }
    }

    #[test]
    fn the_program_of_this_test_needs_a_loader() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(!Executable::read(&own).unwrap().is_static);
    }

    #[test]
    fn what_is_not_an_executable_is_refused_with_a_sentence() {
        let refusal = |file: &[u8]| Executable::read(file).unwrap_err().to_string();
        assert_eq!(refusal(b"#!/bin/sh\n"), "this is not a Linux program of 64 bits");
        assert_eq!(refusal(&smallest(62, PT_LOAD)[..60]), "this program is cut off");
        assert!(refusal(&smallest(8, PT_LOAD)).contains("ELF machine 8"));
    }
}
