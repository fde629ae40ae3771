//! Unwind tables of tests, as bytes.

/// Adds an entry: its length, then its bytes padded with `DW_CFA_nop`. Returns where it is.
pub fn push(section: &mut Vec<u8>, body: &[u8]) -> u32 {
    let at = section.len();
    let padded = body.len().next_multiple_of(8) + 4;
    section.extend((padded as u32).to_le_bytes());
    section.extend(body);
    section.resize(at + 4 + padded, 0);
    at as u32
}

/// Adds a CIE to a `.debug_frame`: the frame is at `rsp` + 8, the return address just below it.
pub fn push_cie(section: &mut Vec<u8>) -> u32 {
    // id, version 1, no augmentation, code alignment 1, data alignment -8, return address in 16
    push(section, &[0xff, 0xff, 0xff, 0xff, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1])
}

pub fn push_fde(section: &mut Vec<u8>, cie: u32, start: u64, length: u64, instructions: &[u8]) -> u32 {
    let mut body = cie.to_le_bytes().to_vec();
    body.extend(start.to_le_bytes());
    body.extend(length.to_le_bytes());
    body.extend(instructions);
    push(section, &body)
}
