//! Frames out of a capture file.

use std::fs::File;
use std::io::{BufReader, Read, Seek as _};
use std::path::Path;

use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};

use super::Traffic;
use crate::error::{Error, Result};

/// The first bytes of a pcapng file (`draft-ietf-opsawg-pcapng`, section header block).
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// The frames of a pcap or pcapng file in its order, without FCS; when they were captured is not kept.
///
/// # Errors
/// The file can't be read or is no capture of Ethernet, a packet was captured in part, or there are none or more than
/// [`Traffic::MAX_TEMPLATES`].
pub fn read_frames(path: &Path) -> Result<Vec<Vec<u8>>> {
    let what = format!("read the frames of {}", path.display());
    let io = |call| {
        let what = what.clone();
        move |error: std::io::Error| Error::io(what.clone(), call, &error)
    };
    let mut file = BufReader::new(File::open(path).map_err(io("open"))?);
    let mut magic = [0; 4];
    file.read_exact(&mut magic).map_err(io("read"))?;
    file.rewind().map_err(io("lseek"))?;
    let frames = if magic == PCAPNG { pcapng_frames(file) } else { pcap_frames(file) };
    frames.map_err(|why| Error::usage(what, why))
}

/// What is wrong with a file.
type Refused<T> = std::result::Result<T, String>;

fn pcap_frames(file: impl Read) -> Refused<Vec<Vec<u8>>> {
    let mut reader = PcapReader::new(file).map_err(|error| error.to_string())?;
    must_be_ethernet(reader.header().datalink)?;
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.map_err(|error| error.to_string())?;
        push(&mut frames, &packet.data, packet.orig_len)?;
    }
    Ok(frames)
}

fn pcapng_frames(file: impl Read) -> Refused<Vec<Vec<u8>>> {
    let mut reader = PcapNgReader::new(file).map_err(|error| error.to_string())?;
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        match block.map_err(|error| error.to_string())? {
            Block::InterfaceDescription(interface) => must_be_ethernet(interface.linktype)?,
            Block::EnhancedPacket(packet) => push(&mut frames, &packet.data, packet.original_len)?,
            Block::SimplePacket(packet) => push(&mut frames, &packet.data, packet.original_len)?,
            _ => {}
        }
    }
    Ok(frames)
}

fn must_be_ethernet(link: DataLink) -> Refused<()> {
    if link == DataLink::ETHERNET { Ok(()) } else { Err(format!("it holds {link:?} and no Ethernet frames")) }
}

fn push(frames: &mut Vec<Vec<u8>>, data: &[u8], original_len: u32) -> Refused<()> {
    if data.len() != original_len as usize {
        return Err(format!("packet {}: {} of {original_len} bytes were captured", frames.len() + 1, data.len()));
    }
    if frames.len() == Traffic::MAX_TEMPLATES {
        return Err(format!("it holds more than {} packets", Traffic::MAX_TEMPLATES));
    }
    frames.push(data.to_vec());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::time::Duration;

    use pcap_file::pcap::{PcapPacket, PcapWriter};
    use pcap_file::pcapng::PcapNgWriter;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;

    use super::*;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn pcap(packets: &[(&[u8], u32)]) -> Vec<u8> {
        let mut writer = PcapWriter::new(Vec::new()).unwrap();
        for (data, original) in packets {
            writer.write_packet(&PcapPacket::new(Duration::ZERO, *original, data)).unwrap();
        }
        writer.into_writer()
    }

    #[test]
    fn frames_come_out_of_both_formats_in_their_order() {
        let frames = [vec![1; 60], vec![2; 100]];
        let bytes = pcap(&[(&frames[0], 60), (&frames[1], 100)]);
        assert_eq!(read_frames(file(&bytes).path()).unwrap(), frames);
        let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
        writer.write_pcapng_block(InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0)).unwrap();
        for frame in &frames {
            let block = EnhancedPacketBlock {
                original_len: frame.len() as u32,
                data: frame.as_slice().into(),
                interface_id: 0,
                timestamp: Duration::ZERO,
                options: Vec::new(),
            };
            writer.write_pcapng_block(block).unwrap();
        }
        assert_eq!(read_frames(file(&writer.into_inner()).path()).unwrap(), frames);
    }

    #[test]
    fn what_is_no_whole_capture_is_refused() {
        let refused = |bytes: &[u8]| read_frames(file(bytes).path()).unwrap_err().to_string();
        assert!(refused(&pcap(&[(&[1; 60], 61)])).contains("packet 1: 60 of 61 bytes"));
        assert!(refused(b"").contains("can't read the frames of"));
        assert!(refused(b"no capture at all, but long enough").contains("can't read the frames of"));
        let missing = read_frames(Path::new("/nonexistent/file.pcap")).unwrap_err().to_string();
        assert!(missing.contains("open: ENOENT"), "{missing}");
        let empty = read_frames(file(&pcap(&[])).path()).unwrap();
        assert_eq!(empty, Vec::<Vec<u8>>::new());
    }
}
